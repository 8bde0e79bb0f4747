"""Documentation and command help: short sentences, the field's own words, commands that exist
(prose.toml)."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from helpers.doc_pages import commands
from helpers.prose import ROOT, RULES, python_violations, violations
from statetrim.commands import app

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "GOVERNANCE.md")),
    *(
        path
        for name in ("docs", "results", "examples")
        for path in sorted((ROOT / name).glob("*.md"))
    ),
]
PYTHON = ("src", "tests", "tools", "studies", "benchmarks")
PROGRAM: Any = typer.main.get_command(app)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """Without code, tables, comments, headings and the targets of links."""
    text = FENCE.sub("", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    lines = [line for line in text.splitlines() if not re.match(r"\||#|    |!\[", line)]
    return "\n".join(lines)


def sentences(text: str) -> Iterator[str]:
    """A paragraph or an item of a list ends its sentence."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?:])[\s*)]+", " ".join(block.split()))


def old_words(text: str) -> list[str]:
    """The words of a text that prose.toml names."""
    return violations(text, RULES["instead_of"])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_follows_the_rules(path: Path) -> None:
    text = prose(path.read_text(encoding="utf-8"))
    if path.name not in RULES["long_sentences"]:
        limit = RULES["most_words_in_a_sentence"]
        assert [s for s in sentences(text) if len(s.split()) > limit] == []
    if path.name not in RULES["long_pages"]:
        assert len(text.split()) <= RULES["most_words_on_a_page"]
    assert old_words(text) == []


def test_the_newest_changes_use_the_fields_words() -> None:
    """What older versions said stays as it was."""
    sections = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")
    newest = next(section for section in sections[1:] if "\n- " in section)
    assert old_words(newest) == []


def test_python_files_use_the_fields_words() -> None:
    paths = [path for folder in PYTHON for path in sorted((ROOT / folder).rglob("*.py"))]
    assert [problem for path in paths for problem in python_violations(path)] == []


def help_texts() -> Iterator[tuple[str, str]]:
    yield "statetrim", f"{PROGRAM.help} {PROGRAM.epilog}"
    for name, command in PROGRAM.commands.items():
        yield name, command.help
        yield from ((f"{name} {p.name}", p.help) for p in command.params if p.name != "help")


def test_help_follows_the_rules() -> None:
    texts = list(help_texts())
    assert len(texts) > 150
    for place, text in texts:
        assert old_words(text) == [], place
        assert max(len(one.split()) for one in sentences(text)) <= 30, place


def test_every_command_in_the_docs_has_options_that_exist() -> None:
    """Those of the README and the quickstart are run too (test_readme.py)."""
    shown = [command for page in PAGES for command in commands(page) if not command.inline]
    lines = [command for command in shown if command.words.startswith("statetrim ")]
    assert len(lines) > 40
    for line in lines:
        _, name, *words = shlex.split(line.words)
        assert name in PROGRAM.commands, str(line)
        command = PROGRAM.commands[name]
        context = typer.Context(command)
        words = [word for word in words if word not in ("--quiet", "--traceback", "...")]
        try:
            command.make_parser(context).parse_args(words)
        except Exception as error:
            raise AssertionError(f"{line}: {error}") from error
