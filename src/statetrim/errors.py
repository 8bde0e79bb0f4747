"""The one exception for what a user can mend; the command line turns it into a sentence."""

import logging
from collections.abc import Collection, Iterable
from difflib import get_close_matches


class StatetrimError(ValueError):
    """Something given to statetrim is wrong; the message names it and what would work."""


def check_option_names(owner: str, names: Iterable[str], valid_names: Collection[str]) -> None:
    """Answer an option that `owner` does not have with the nearest one that it has."""
    for name in names:
        if name not in valid_names:
            matches = get_close_matches(name, valid_names, 1, cutoff=0.5)
            hint = (
                f"did you mean {matches[0]!r}?"
                if matches
                else f"it has: {', '.join(valid_names) or 'none'}"
            )
            raise StatetrimError(f"{owner} has no option {name!r}; {hint}")


def warn_deprecated(feature: str, replacement: str, removed_in: str) -> None:
    """A warning for what will go; CONTRIBUTING.md has the rule."""
    logging.getLogger("statetrim").warning(
        "%s is deprecated and will be removed in %s: %s", feature, removed_in, replacement
    )


def warn_deprecated_resume(resume: bool) -> None:
    """Since 0.2 every interrupted run resumes."""
    if resume:
        warn_deprecated("resume", "the same call, or command, resumes by itself", "0.4")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of a GPU; without importing torch to know."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
