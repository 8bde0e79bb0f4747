"""How many sequences fit, by each engine's own arithmetic."""
