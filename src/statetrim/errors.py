"""The one exception for what a user can mend; the command line turns it into a sentence."""


class StatetrimError(ValueError):
    """Something given to statetrim is wrong; the message names it and what would work."""
