"""What a person sees, a file for each command."""
