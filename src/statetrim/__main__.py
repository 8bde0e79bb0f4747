"""Run the command line as `python -m statetrim`."""

from .cli import main

main()
