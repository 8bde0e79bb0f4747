"""Weights stored quantised: how they are found, read, cut and written again."""
