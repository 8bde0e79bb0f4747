"""What a person sees of the steps from a model to a smaller one."""
