"""A checkpoint as a live model: loading, hooks, states, logits, processes."""
