"""What studies share: arguments, rows that are measured once, tables, and places in pages.

A study is one script. `python studies/NAME.py run ...` adds lines to a file in results/, and
measures what the file lacks; `python studies/NAME.py page` fills the tables of the page from these
lines, and draws its picture.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
Row = dict[str, Any]

_HELP = {
    "text": "to calibrate on",
    "test": "plain text for NLL and KL",
    "work": "keeps checkpoints and statistics for a next run",
    "name": "of the model in the results; default: its directory's",
    "windows": "of the test text",
    "length": "tokens of a window",
    "rows": "recall sequences per number of pairs",
    "sequences": "recall sequences for each number of pairs",
    "tokens": "of calibration",
    "seed": "of the calibration",
}
_PATHS = ("text", "test", "work", "results")


def study_parser(docstring: str | None, *required: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser for the script with this docstring. `required` are paths, of which "model" and "cut"
    have no option name. The others have the type of their default; a list takes several values."""
    arguments = argparse.ArgumentParser(description=(docstring or "").split("\n\n")[0])
    for name in required:
        if name in ("model", "cut"):
            arguments.add_argument(name, type=Path)
        else:
            arguments.add_argument(f"--{name}", type=Path, required=True, help=_HELP.get(name))
    for name, default in defaults.items():
        one = default[0] if isinstance(default, list) else default
        kind = Path if name in _PATHS else str if one is None else type(one)
        arguments.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            nargs="+" if isinstance(default, list) else None,
            default=Path(default) if kind is Path and default else default,
            help=_HELP.get(name),
        )
    return arguments


def start(page: Callable[[Path], None], **actions: Callable[[], None]) -> None:
    """Run the command line `SCRIPT ACTION ...` of a study: `page [RESULTS]`, or an action that
    parses the other words."""
    action = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if action == "page":
        parser = argparse.ArgumentParser(
            description="Fill the tables of the page, draw its picture."
        )
        parser.add_argument("results", type=Path, nargs="?", default=RESULTS, help="their folder")
        page(parser.parse_args().results)
    elif action in actions:
        actions[action]()
    else:
        sys.exit(f"usage: {sys.argv[0]} {' | '.join((*actions, 'page'))} ...; each takes --help")


class Rows:
    """A file of JSON lines; rows that it has are not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = read_rows(path) if path.exists() else []

    def has(self, case: Row) -> bool:
        return any(case.items() <= row.items() for row in self.rows)

    def missing(self, cases: list[Row]) -> Iterator[Row]:
        """Yield the `cases` that have no row yet."""
        unmeasured = [case for case in cases if not self.has(case)]
        print(f"{len(unmeasured)} of {len(cases)} rows to measure", flush=True)
        for case in unmeasured:
            if not self.has(case):  # a case may be named twice
                print(" ".join(f"{value}" for value in case.values()), flush=True)
                yield case

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    def measure_missing(self, cases: list[Row], measured: Callable[[Row], Row]) -> None:
        for row in self.missing(cases):
            self.add(row | measured(row))

    def select(self, **filters: Any) -> list[Row]:
        """The rows with these values, ordered by sample. Raises LookupError if there is none."""
        matches = [row for row in self.rows if filters.items() <= row.items()]
        if not matches:
            raise LookupError(f"no row has {filters}")
        return sorted(matches, key=lambda row: int(row.get("sample", 0)))


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_model(rows: list[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(row["model"] for row in rows)
    return {name: [row for row in rows if row["model"] == name] for name in names}


def table(header: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Markdown; the first `left` columns are aligned to the left."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def with_margin(change: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """A change and half of its interval."""
    estimate, low, high = (scale * number for number in change)
    return f"{estimate:+.{digits}f} ± {(high - low) / 2:.{digits}f}"


def fill(page: Path, contents: dict[str, str]) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- end -->` in a Markdown file."""
    text = page.read_text()
    for name, content in contents.items():
        place = rf"(<!-- {re.escape(name)} -->\n+).*?(\n+<!-- end -->)"
        text, count = re.subn(place, lambda m, new=content: m[1] + new + m[2], text, flags=re.S)  # type: ignore[misc]
        if not count:
            raise LookupError(f"{page} has no place <!-- {name} -->")
    page.write_text(text)


def places(page: Path, kind: str) -> list[str]:
    """What follows `kind` in the names of a page's places, such as the model of `axes MODEL`."""
    return re.findall(rf"<!-- {kind} (.+?) -->", page.read_text())
