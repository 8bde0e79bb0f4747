"""The file of `--log`: all output, with timestamps."""

import time
from pathlib import Path

from rich.console import RenderableType

from ..errors import StatetrimError
from ..progress.plain_console import PlainConsole

_FIRST_LINE = "# statetrim log"
_WIDTH = 120


class Log:
    """A log file; a run appends to the log of earlier runs and refuses any other existing file."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not _is_log(path):
            raise StatetrimError(
                f"{path} exists already and is not a log of statetrim; choose another name"
            )
        try:
            self.file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise StatetrimError(f"{path} cannot be written: {error.strerror}") from None
        if not self.file.tell():
            self.file.write(f"{_FIRST_LINE}\n")
        self.console = PlainConsole(file=self.file, width=_WIDTH, markup=False, no_color=True)

    def write_line(self, text: str) -> None:
        """Append a timestamp and the text, with control characters replaced by spaces."""
        printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
        self.file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {printable}\n")

    def write_table(self, table: RenderableType) -> None:
        """Append a table, without a timestamp."""
        self.console.print(table)


def _is_log(path: Path) -> bool:
    """Whether `path` is a file that is empty or begins like a log of statetrim."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(len(_FIRST_LINE))
    return start in (b"", _FIRST_LINE.encode())
