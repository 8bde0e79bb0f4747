"""Commands for the single steps of `trim`."""
