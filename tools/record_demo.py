"""Run `statetrim demo` and save its terminal output as SVG.

    python tools/record_demo.py docs/figures/demo.svg

Only the table of scores is saved; the other tables are left out so that it fits a page.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import tempfile
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from statetrim.commands import app, terminal
from statetrim.commands import demo as console
from statetrim.commands.progress import show_progress
from statetrim.pipelines import demo

QUIET = ("inspect", "calibrate", "select", "prune", "analyze")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.resolve()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    screen = Console(record=True, width=92, markup=False, force_terminal=True)
    terminal.out = lambda: screen

    def command(words: list[str], quiet: bool) -> None:
        with console.muted(words[0] in QUIET):
            app(words, standalone_mode=False)

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        screen.print("$ statetrim demo", style="bold")
        demo.run(Path("statetrim-demo"), command, console.show_line, show_progress("training"))
    # Without Rich's web font, which would be fetched from another server.
    page = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    out.write_text(screen.export_svg(title="statetrim demo", code_format=page), encoding="utf-8")


if __name__ == "__main__":
    main()
