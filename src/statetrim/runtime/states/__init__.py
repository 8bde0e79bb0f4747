"""Recurrent states of a running model: sampled along the tokens, or stored in fewer bits."""
