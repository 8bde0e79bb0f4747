"""Measure the speed and memory of checkpoints: Checkpoints -> Timings."""
