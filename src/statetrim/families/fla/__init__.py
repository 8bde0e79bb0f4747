"""Families of further fla model types, one per file."""
