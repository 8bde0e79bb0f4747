"""Checkpoints -> Timings."""
