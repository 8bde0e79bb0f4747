"""Shrink the recurrent state of linear-attention models after training."""
