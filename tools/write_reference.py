"""Fill docs/commands.md and docs/api.md from the command line's help and the public docstrings.

python tools/write_reference.py docs

On the site, mkdocs_hooks.py replaces the list of docs/api.md by complete signatures.
"""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import statetrim
from statetrim.commands import app

HEAD = ("| | | default |", "|---|---|---|")


def commands() -> str:
    """Markdown of every command with its arguments and options, those of several commands once."""
    by_name = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    rows = {name: [*_rows(by_name[name])] for name in sorted(by_name)}
    uses = Counter(row for listed in rows.values() for row in listed if row.startswith("| `-"))
    # A command in which an option means something else has a row of its own for it.
    commonest = {_flags(row): row for row, count in reversed(uses.most_common()) if count > 1}
    shared = sorted(commonest.values())
    parts = ["\n".join(_command(name, by_name[name], rows[name], shared)) for name in rows]
    return "\n\n".join([*parts, "\n".join(["## Options of several commands", "", *HEAD, *shared])])


def _command(name: str, command: Any, rows: list[str], shared: list[str]) -> Iterator[str]:
    arguments = "".join(f" {p.name.upper()}" for p in command.params if not _is_option(p))
    required = (p for p in command.params if _is_option(p) and p.required)
    options = "".join(f" {p.opts[0]} {p.name.upper()}" for p in required)
    yield from (f"## {name}", "", _cell(command.help), "")
    yield from ("```", f"statetrim {name}{arguments}{options}", "```")
    if own := [row for row in rows if row not in shared]:
        yield from ("", *HEAD, *own)
    if common := [_flags(row) for row in rows if row in shared]:
        yield from (
            "",
            f"[Options of several commands](#options-of-several-commands): {', '.join(common)}.",
        )


def _flags(row: str) -> str:
    return row.split(" | ")[0].removeprefix("| ")


def _rows(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.name != "help":
            shown = [*parameter.opts, *parameter.secondary_opts]
            name = "`, `".join(shown) if _is_option(parameter) else parameter.name.upper()
            yield f"| `{name}` | {_cell(parameter.help)} | {_default(parameter)} |"


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _default(parameter: Any) -> str:
    value = parameter.default
    none = parameter.required or callable(value) or value is None or value is False
    return "" if none or value in ("", ()) else f"`{value}`"


def names() -> str:
    """Markdown tables of the public names with the first sentence of their docstrings."""
    public = [name for name in statetrim.__all__ if name != "__version__"]
    tables = []
    for title, members in (
        ("Functions", [name for name in public if name[0].islower()]),
        ("Classes", [name for name in public if not name[0].islower()]),
    ):
        rows = [f"| `{name}` | {_summary(getattr(statetrim, name))} |" for name in members]
        tables.append("\n".join([f"## {title}", "", "| | |", "|---|---|", *rows]))
    return "\n\n".join(tables)


def _summary(value: Any) -> str:
    """The first sentence of a docstring."""
    text = _cell((inspect.getdoc(value) or "").split("\n\n")[0])
    return re.split(r"(?<=\.) (?=[A-Z`])", text)[0]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def filled(page: str, name: str, content: str) -> str:
    """`page` with `content` between `<!-- name -->` and `<!-- end -->`."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    return re.sub(
        pattern, lambda match: f"{match[1]}\n{content}\n\n{match[2]}", page, flags=re.DOTALL
    )


def main(docs: Path) -> None:
    for file, name, content in (
        ("commands.md", "commands", commands()),
        ("api.md", "api", names()),
    ):
        path = docs / file
        page = path.read_text(encoding="utf-8")
        path.write_text(filled(page, name, content), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
