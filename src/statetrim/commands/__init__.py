"""The command line. Each command has a module and calls the Python function of the same name."""

from .app import app, main

__all__ = ["app", "main"]
