"""Commands that measure a model: its size, quality and speed."""
