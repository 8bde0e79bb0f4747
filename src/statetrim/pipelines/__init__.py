"""Several capabilities in one run: trim, demo."""
