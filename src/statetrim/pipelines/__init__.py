"""Several capabilities in one run: trim, sweep, demo."""
