"""Model and text -> Statistics."""
