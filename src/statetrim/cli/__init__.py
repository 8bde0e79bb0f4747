"""The command line: parsing only. Each command calls the Python function of the same name.

Each command has a module; the imports below set the order of the help page.
"""

# ruff: noqa: F401, I001
from . import trim
from .measures import inspect
from .steps import calibrate, merge, select, prune, refit
from .measures import evaluate, analyze
from .steps import recover
from .measures import verify, benchmark, report
from . import push, recipe, doctor, demo
from .app import app, main

__all__ = ["app", "main"]
