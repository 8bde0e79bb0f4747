"""A cut and its original -> the cut after recovery training."""
