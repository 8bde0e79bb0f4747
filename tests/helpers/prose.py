"""The rules of prose.toml, for pages and for the names, docstrings and comments of Python files."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RULES: dict[str, Any] = tomllib.loads((ROOT / "prose.toml").read_text(encoding="utf-8"))


def violations(text: str, rules: dict[str, str]) -> list[str]:
    """The words of `rules` that occur in a text, with what to say instead; quoted code is free."""
    plain = re.sub(r"`[^`]*`", "", " ".join(text.split()))
    if not _any_of(tuple(rules)).search(plain):  # nearly always, and a tenth of the time
        return []
    return [
        f"{old!r}: say {new!r}"
        for old, new in rules.items()
        if re.search(rf"\b(?:{old})\b", plain, re.IGNORECASE)
    ]


@cache
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


def python_violations(path: Path) -> Iterator[str]:
    """`file:line: word: say another`, for each name, docstring and comment against the rules."""
    source = path.read_text(encoding="utf-8")
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    tree = ast.parse(source)
    for line, name in _bound_names(tree):
        for problem in _name_violations(name):
            yield f"{place}:{line}: name {name}: {problem}"
    rules = RULES["instead_of"] | RULES["docstrings"]
    if not _any_of(tuple(rules)).search(re.sub(r"[\s#]+", " ", source)):
        return  # nearly always; finding comments takes ten times as long
    for line, text in [*_docstrings(tree), *_comments(source)]:
        for problem in violations(text, rules):
            yield f"{place}:{line}: {problem}"


@cache
def _name_violations(name: str) -> list[str]:
    """Of its words, which are "read kept rows" in `readKeptRows` and `_read_kept_rows`."""
    rules = RULES["instead_of"] | ({} if name.startswith("test_") else RULES["names"])
    return violations(re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])", " ", name).lower(), rules)


def _bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that the file defines: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that stand as statements: of modules, classes, functions, and below constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
