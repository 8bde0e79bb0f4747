"""Print a table of the sizes of folders, files and functions.

    python tools/layout.py [SOURCE ...]

Each SOURCE is a folder such as src/statetrim, possibly of another checkout, and gets a column.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SOURCE = Path(__file__).parents[1] / "src" / "statetrim"


@dataclass(frozen=True)
class Layout:
    """Sizes by name: files in each folder, lines in each Python file and in each function."""

    folders: Counter[str]
    files: Counter[str]
    functions: Counter[str]


def layout(source: Path) -> Layout:
    sizes = Layout(Counter(), Counter(), Counter())
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_dir() or "__pycache__" in name:
            continue
        sizes.folders[path.parent.relative_to(source).as_posix()] += 1
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            sizes.files[name] = len(text.splitlines())
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    sizes.functions[f"{name}:{node.lineno} {node.name}"] = lines
    return sizes


ROWS: dict[str, Callable[[Layout], str]] = {
    "folders": lambda sizes: str(len(sizes.folders)),
    "files in the largest folder": lambda sizes: _largest(sizes.folders),
    "Python files": lambda sizes: str(len(sizes.files)),
    "median file, lines": lambda sizes: f"{median(sizes.files.values()):g}",
    "longest file, lines": lambda sizes: _largest(sizes.files),
    "functions": lambda sizes: str(len(sizes.functions)),
    "median function, lines": lambda sizes: f"{median(sizes.functions.values()):g}",
    "longest function, lines": lambda sizes: _largest(sizes.functions),
}


def _largest(sizes: Counter[str]) -> str:
    ((name, size),) = sizes.most_common(1)
    return f"{size} (`{name}`)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sources", type=Path, nargs="*", default=[SOURCE])
    sources = parser.parse_args().sources
    layouts = [layout(source) for source in sources]
    print("| |", " | ".join(map(str, sources)), "|")
    print("|---|", "---|" * len(sources), sep="")
    for name, cell in ROWS.items():
        print(f"| {name} |", " | ".join(map(cell, layouts)), "|")


if __name__ == "__main__":
    main()
