"""The program: its options, its notes, and how it ends."""

import logging
import os
import sys
from typing import Annotated

import typer

from ..errors import StatetrimError

app = typer.Typer(
    name="statetrim",
    help="Shrink the recurrent state of linear-attention models after training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show Python's traceback when something fails.")
    ] = False,
) -> None:
    _state["traceback"] = traceback


_state = {"traceback": False}


def main() -> None:
    """Run the command line: a user's mistake is one sentence and exit code 2."""
    # Our own progress and notes, not those of the libraries underneath.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = logging.StreamHandler()
    handler.addFilter(_once)
    logging.basicConfig(format="%(message)s", level=logging.ERROR, handlers=[handler])
    logging.getLogger("statetrim").setLevel(logging.INFO)
    try:
        app()
    except StatetrimError as error:
        _fail(error, 2)
    except OSError as error:
        _fail(error, 1)


_told: set[str] = set()


def _once(record: logging.LogRecord) -> bool:
    """A run that loads models ten times says once where they run."""
    new = record.getMessage() not in _told
    _told.add(record.getMessage())
    return new


def _fail(error: Exception, code: int) -> None:
    if _state["traceback"]:
        raise error
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {text}"
    # Names in an untrusted file may hold line breaks or terminal codes.
    sentence = "".join(c if c.isprintable() else " " for c in text)
    print(f"statetrim: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)
