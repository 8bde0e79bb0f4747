"""The README.md of a checkpoint that was cut."""
