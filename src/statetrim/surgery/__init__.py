"""Model and Plan -> a smaller checkpoint, checked and refitted."""
