"""The program: global options, log messages, error messages and exit codes."""

import logging
import os
import shutil
import sys
import textwrap
from traceback import format_exception_only, print_exc
from typing import Annotated

import typer

from ..errors import StatetrimError, is_out_of_memory
from .group import Interrupted, StatetrimGroup, print_version

app = typer.Typer(
    name="statetrim",
    cls=StatetrimGroup,
    help="Shrink the recurrent state of linear-attention models after training.",
    epilog="--quiet and --traceback can also follow the command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes leave too little room for words in 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)
_shows_traceback = False


@app.callback()
def _global_options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show Python's traceback when something fails.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Only results, warnings and errors.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=print_version, is_eager=True
        ),
    ] = False,
) -> None:
    global _shows_traceback
    _shows_traceback |= traceback  # the demo runs commands within a command
    if quiet:
        from . import terminal

        terminal.err().quiet = True
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # read when huggingface_hub is imported


def main() -> None:
    """Run the command line. A user's mistake ends in one sentence and exit code 2, any other error
    in one sentence and exit code 1, Ctrl-C in exit code 130."""
    # Silence libraries, except the bars of downloads: a run loads many models, each with a bar.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported
    # Idle OpenMP threads sleep instead of spinning, which slows everything on a busy machine. Read
    # when torch is imported, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(format="%(message)s", level=logging.ERROR, handlers=[_LogHandler()])
    logging.getLogger("statetrim").setLevel(logging.INFO)
    try:
        app()
    except Interrupted as interrupt:
        print_error(str(interrupt))
        sys.exit(130)  # the convention of shells: 128 + SIGINT
    except Exception as error:
        if _shows_traceback:
            print_exc()
        else:
            print_error(_error_sentence(error))
        sys.exit(2 if isinstance(error, StatetrimError) else 1)


def _error_sentence(error: Exception) -> str:
    if isinstance(error, StatetrimError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason
    if is_out_of_memory(error):
        return (
            "memory ran out; try a smaller --batch-size, shorter sequences, or --layerwise; "
            "the same command resumes from what is finished"
        )
    first_line = format_exception_only(error)[0].partition("\n")[0][:300]
    where = "the same command with --traceback shows where"
    return f"unexpected {first_line}; {where}, please report it"


def print_error(text: str) -> None:
    """Print one line on standard error, without control characters, which names may hold."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    text = f"statetrim: {' '.join(printable.split())}"
    if sys.stderr.isatty():  # break between words; a path stays whole
        columns = shutil.get_terminal_size().columns
        text = textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)


class _LogHandler(logging.Handler):
    """Shows log messages above any progress bar, each text once: a run that loads ten models would
    repeat itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a text once, as a warning or below that level as a note; repeats are dropped."""
        from . import terminal

        text = self.format(record)
        if text not in self.seen:
            self.seen.add(text)
            if record.levelno >= logging.WARNING:
                terminal.warn(text)
            else:
                terminal.note(text)
