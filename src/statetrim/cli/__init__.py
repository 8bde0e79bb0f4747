"""The command line: parsing only. Each command calls the function of the same name.

A module for each command; they are imported in the order of the help page.
"""

# ruff: noqa: F401, I001
from . import (
    trim,
    inspect,
    calibrate,
    merge,
    select,
    prune,
    refit,
    evaluate,
    analyze,
    recover,
    benchmark,
    report,
    demo,
)
from .app import app, main

__all__ = ["app", "main"]
