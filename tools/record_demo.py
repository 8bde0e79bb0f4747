"""Run `statetrim demo` and save what it prints as SVG, at 80 and 120 columns, light and dark.

    python tools/record_demo.py docs/figures/demo.svg

Writes demo.svg, which is 80 columns on a dark screen, and next to it demo-80-light.svg,
demo-120-dark.svg and demo-120-light.svg, to be looked at.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

from statetrim.commands import terminal
from statetrim.commands.demo import BEGINNING, run_story, show_result

THEMES = {"dark": SVG_EXPORT_THEME, "light": DEFAULT_TERMINAL_THEME}
# Without Rich's web font, which would be fetched from another server.
PAGE = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Screen(Console):
    """A console that divides long commands between characters, as terminals do."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **settings: Any) -> None:
        if soft_wrap:
            (text,) = objects
            starts = range(0, len(text), self.width)
            objects = ("\n".join(text[start : start + self.width] for start in starts),)
        super().print(*objects, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.resolve()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    steps: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        began = time.monotonic()
        run_story(Path("statetrim-demo"), on_step=steps.append)
        seconds = time.monotonic() - began
        for columns in (80, 120):
            for name, theme in THEMES.items():
                screen = Screen(record=True, width=columns, markup=False, force_terminal=True)
                terminal.out = lambda screen=screen: screen
                screen.print("$ statetrim demo", style="bold")
                terminal.print_text(BEGINNING, style="bold")
                for step in steps:
                    terminal.print_text(step)
                show_result(Path("statetrim-demo"), seconds)
                is_main = (columns, name) == (80, "dark")
                path = out if is_main else out.with_name(f"{out.stem}-{columns}-{name}.svg")
                svg = screen.export_svg(title="statetrim demo", theme=theme, code_format=PAGE)
                path.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
