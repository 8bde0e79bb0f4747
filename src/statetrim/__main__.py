"""Run the command line as `python -m statetrim`."""

from .commands import main

main()
