"""Shared by several tests: tiny checkpoints, reference results, scripts for other processes."""
