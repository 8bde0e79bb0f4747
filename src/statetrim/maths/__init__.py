"""Numbers only: no file, no model."""
