"""A smaller checkpoint and its original -> one that is repaired."""
