"""Checkpoints and tasks -> Scores."""
