"""The one exception for what a user can mend; the command line turns it into a sentence."""

import logging
from collections.abc import Collection, Iterable
from difflib import get_close_matches


class StatetrimError(ValueError):
    """Something given to statetrim is wrong; the message names it and what would work."""


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Answer an option that `owner` does not have with the nearest one that it has."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise StatetrimError(f"{owner} has no option {name!r}; {hint}")


def deprecated(what: str, instead: str, removed_in: str) -> None:
    """A warning for what will go; CONTRIBUTING.md has the rule."""
    logging.getLogger("statetrim").warning(
        "%s is deprecated and will be removed in %s: %s", what, removed_in, instead
    )


def deprecated_resume(asked: bool) -> None:
    """Since 0.2 every interrupted run resumes."""
    if asked:
        deprecated("resume", "the same call, or command, resumes by itself", "0.4")


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of a GPU; without importing torch to know."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
