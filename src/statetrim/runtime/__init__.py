"""A checkpoint as a live model: loading, mixers, kernel hooks, states, logits, processes."""
