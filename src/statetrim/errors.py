"""The one exception for what a user can mend; the command line turns it into a sentence."""

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


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of a GPU; without importing torch to know."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
