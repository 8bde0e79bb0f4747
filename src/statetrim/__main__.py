"""`python -m statetrim`."""

from .cli import main

main()
