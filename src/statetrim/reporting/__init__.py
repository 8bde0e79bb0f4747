"""Artifacts -> one page, and pictures."""
