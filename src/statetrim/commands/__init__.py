"""The command line. Each command has a module and calls the Python function of the same name.

The imports below set the order of the help page.
"""

# ruff: noqa: F401, I001
from .trimming import trim
from .measures import inspect
from .steps import calibrate, merge, select, prune, refit
from .measures import evaluate, analyze
from .steps import recover
from .measures import verify, benchmark, report
from . import push, recipe, doctor, demo
from .app import app, main

__all__ = ["app", "main"]
