"""Stored copies of states in fewer bytes, within a bound on their error; saved prompts."""
