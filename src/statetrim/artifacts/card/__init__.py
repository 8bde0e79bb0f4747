"""The model card (README.md) of a cut."""
