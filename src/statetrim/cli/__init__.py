"""The command line: parsing only. Each command calls the function of the same name.

A module for each command; they are imported in the order of the help page.
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
