"""README.md and docs/: short sentences, the field's own words, commands that exist (prose.toml)."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from statetrim.cli import app

ROOT = Path(__file__).parents[1]
RULES = tomllib.loads((ROOT / "prose.toml").read_text())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM: Any = typer.main.get_command(app)
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """Without code, tables, comments, headings and the targets of links."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    lines = [line for line in text.splitlines() if not re.match(r"\||#|    |!\[", line)]
    return "\n".join(lines)


def sentences(text: str) -> Iterator[str]:
    """A paragraph or an item of a list ends its sentence."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?:])[\s*)]+", " ".join(block.split()))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_follows_the_rules(path: Path) -> None:
    text = prose(path)
    if path.name not in RULES["long_sentences"]:
        limit = RULES["most_words_in_a_sentence"]
        assert [s for s in sentences(text) if len(s.split()) > limit] == []
    if path.name not in RULES["long_pages"]:
        assert len(text.split()) <= RULES["most_words_on_a_page"]
    for old, new in RULES["instead_of"].items():
        assert not re.search(rf"\b{old}\b", text, re.IGNORECASE), f"{old!r}: say {new!r}"


def test_exceptions_are_of_pages_that_there_are_or_come() -> None:
    names = {path.name for path in PAGES} | {"paper.md"}
    assert {*RULES["long_pages"], *RULES["long_sentences"]} <= names


def commands() -> Iterator[tuple[str, str]]:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md"]
    for path in pages:
        for language, block in FENCE.findall(path.read_text(encoding="utf-8")):
            if language in ("", "console", "bash", "sh"):
                for line in block.replace("\\\n", " ").splitlines():
                    found = re.match(r"\s*(?:\$ )?(?:\w+=\S+ )*statetrim ([a-z]+.*)", line)
                    if found:
                        yield path.name, found[1].partition("  #")[0]


def test_every_command_in_the_docs_has_options_that_exist() -> None:
    """Those of the README and the quickstart are run too (test_readme.py)."""
    found = list(commands())
    assert len(found) > 40
    for page, line in found:
        name, *words = shlex.split(line)
        assert name in PROGRAM.commands, f"{page}: {line}"
        command = PROGRAM.commands[name]
        context = typer.Context(command)
        words = [word for word in words if word not in ("--quiet", "--traceback", "...")]
        try:
            command.make_parser(context).parse_args(words)
        except Exception as error:
            raise AssertionError(f"{page}: statetrim {line}: {error}") from error
