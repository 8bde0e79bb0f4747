"""StatetrimError, which the command line prints as one sentence."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class StatetrimError(ValueError):
    """An input or option is wrong; the message says which, and what would work."""


def check_option_names(owner: str, names: Iterable[str], valid_names: Collection[str]) -> None:
    """Raise StatetrimError for a name that is not valid, with the nearest that is, or all."""
    for name in names:
        if name in valid_names:
            continue
        matches = get_close_matches(name, valid_names, 1, cutoff=0.5)
        hint = f"it has: {', '.join(valid_names) or 'none'}"
        if matches:
            hint = f"did you mean {matches[0]!r}?"
        raise StatetrimError(f"{owner} has no option {name!r}; {hint}")


@contextmanager
def errors_of(
    action: str, hint: str = "", kinds: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Within, errors of a library become StatetrimErrors: "`action`: first line`hint`"; not those
    of other `kinds`, and not out of memory."""
    try:
        yield
    except StatetrimError:
        raise
    except kinds as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        message = f"{action}: {reason}{hint}"
        raise StatetrimError(message) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that host or GPU memory ran out. Does not import torch."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
