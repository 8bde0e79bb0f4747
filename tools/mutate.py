"""Change one operator or constant at random, and see whether the tests of that file notice.

    python tools/mutate.py 200 7                                  200 changes of CORE files, seed 7
    python tools/mutate.py 10 7 src/statetrim/maths/paired.py     of these files

The changes are made in a copy of src/. The tests of a file are those that import it and those of
its folder, without slow ones, LONG ones and what they run in other processes. They run once without
a change, under coverage; then, for each change, those that run its line. Numbers in messages and in
`__repr__` are left alone.
"""

import ast
import itertools
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers.modeling_layers  # noqa: F401  (most of what tests import, with torch)
from coverage import CoverageData

from changed_tests import ROOT, tests_of

CORE = tuple(
    f"src/statetrim/{name}.py"
    for name in (
        "artifacts/statistics", "calibration/sums", "statistics/mixture", "cut/geometry",
        "cut/request", "judging/control", "judging/limits", "judging/losses",
        "judging/verdict", "maths/paired", "option_types", "pipelines/recipe",
        "pipelines/shape_choice", "pipelines/stage",
        "selection/allocate", "serving/capacity/arithmetic", "serving/capacity/parts",
        "serving/shapes", "snapshots/coding", "snapshots/layout", "snapshots/low_rank",
        "snapshots/prompt",
        "storage/quantized/find", "storage/quantized/read",
        "storage/quantized/rewrite", "storage/quantized/scheme", "surgery/check", "surgery/refit",
    )
)  # fmt: skip
"""Files that compute what users decide by, or that keep errors from them."""
LONG = (
    "test_add_an_engine.py", "test_determinism.py", "test_devices.py", "test_llamacpp_codec.py",
    "test_existing_files.py", "test_push.py", "test_uneven.py", "test_untrusted_files.py",
    "test_untrusted_headers.py",
)  # fmt: skip
"""Files of tests that take many seconds, mostly in other processes; they do not run."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
"""Operator -> what replaces it."""
MOST_SECONDS = 180
"""Of tests for one change; five times as many of the processor end an endless loop."""


def places(node: ast.AST) -> Iterator[ast.AST]:
    """The operators and small whole numbers below a node that can be changed."""
    if change_of(node) is not None:
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_shown_only(child):
                    yield from places(child)


def _is_shown_only(node: ast.AST) -> bool:
    """Whether a node is a formatted text, or a method that makes one."""
    is_repr = isinstance(node, ast.FunctionDef) and node.name == "__repr__"
    return is_repr or isinstance(node, ast.JoinedStr)


def change_of(node: ast.AST) -> ast.AST | None:
    """What replaces a node; None if nothing does."""
    match node:
        case ast.Compare(left, [operator, *others], comparators) if type(operator) in SWAPS:
            return ast.Compare(left, [SWAPS[type(operator)](), *others], comparators)
        case ast.BinOp(ast.expr() as left, operator, right) if type(operator) in SWAPS:
            is_text = any(
                isinstance(x, ast.Constant) and type(x.value) is str for x in (left, right)
            )
            return None if is_text else ast.BinOp(left, SWAPS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(SWAPS[type(operator)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(value) if type(value) is int and 0 <= value < 100:
            return ast.Constant(value + 1)
    return None


class Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().generic_visit(node)


@dataclass(frozen=True)
class Change:
    path: str
    changed: str  # the whole source
    lines: range  # of the statement that is changed
    words: str


def change_one(path: str, source: str, number: int) -> Change:
    """The change in the place of this number."""
    tree = ast.parse(source)
    old: Any = list(places(tree))[number]
    new = change_of(old)
    assert new is not None
    lines = _statement_lines(tree, old.lineno)
    words = f"{old.lineno}: {ast.unparse(old)} -> {ast.unparse(new)}"
    changed = ast.unparse(ast.fix_missing_locations(Replace(old, new).visit(tree)))
    return Change(path, changed, lines, words)


def _statement_lines(tree: ast.Module, line: int) -> range:
    """The lines of the innermost statement at a line, without the body of a block."""
    statements = [_lines(node) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return max((lines for lines in statements if line in lines), key=lambda lines: lines.start)


def _lines(statement: ast.stmt) -> range:
    last = statement.end_lineno or statement.lineno
    if body := getattr(statement, "body", None):
        last = max(body[0].lineno - 1, statement.lineno)
    return range(statement.lineno, last + 1)


def choose_changes(count: int, seed: int, files: list[str]) -> list[Change]:
    """So many changes, no two the same. The files take turns."""
    choose, changes = random.Random(seed), list[Change]()
    sources = {path: (ROOT / path).read_text() for path in files}
    numbers = {path: range(len([*places(ast.parse(sources[path]))])) for path in files}
    shuffled = {path: choose.sample(numbers[path], len(numbers[path])) for path in files}
    for turn in range(max(map(len, numbers.values()))):
        for path in files:
            if turn < len(shuffled[path]):
                changes.append(change_one(path, sources[path], shuffled[path][turn]))
            if len(changes) == count:
                return changes
    return changes


def tests_for(path: str) -> list[str]:
    """The test files that import a file of the package, and those of its folder."""
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    imports = (f"{module} import", f"import {module}", f"from {parent} import {name}\n")
    importing = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if any(text in file.read_text() for text in imports):
            importing.append(str(file.relative_to(ROOT)))
    folder = tests_of(path)
    if folder != "tests":
        for file in sorted((ROOT / folder).rglob("test_*.py")):
            importing.append(str(file.relative_to(ROOT)))
    return [file for file in dict.fromkeys(importing) if Path(file).name not in LONG]


class Tests:
    """Tests of the package in `source_root`: what they take, and which lines each of them runs."""

    def __init__(self, source_root: Path) -> None:
        self.source_root = source_root
        self.seconds = dict[str, float]()
        self._lines = str(source_root.with_name("lines"))

    def record(self, files: list[str]) -> None:
        """Run the tests of these files once, without a change."""
        words = [f"--cov={self.source_root}", "--cov-config=", "--cov-context=test", "--cov-append"]
        printed, code = self._run([*words, "--cov-report=", "--durations=0", *files])
        if code:
            sys.exit(f"{printed}\nTests fail without a change")
        for time_text, test in re.findall(r"^([\d.]+)s (?:setup|call) +(.+)$", printed, re.M):
            self.seconds[test] = self.seconds.get(test, 0.0) + float(time_text)

    def running(self, change: Change) -> list[str]:
        """The tests that run the lines of a change, file by file, the quickest first, as many as
        take MOST_SECONDS. What tests share, a file's fixtures for example, counts for all."""
        data = CoverageData(self._lines)
        data.read()
        tests_by_line = data.contexts_by_lineno(str(self.source_root.parent / change.path))
        inside = {x for line in change.lines for x in tests_by_line.get(line, ())}
        if not inside - {""}:  # it runs as the file is imported, for all that use the file
            inside = {x for tests in tests_by_line.values() for x in tests} if inside else set()
        shared = {x.partition("::")[0] for x in inside if not x.endswith("|run")}
        alone = {x.removesuffix("|run") for x in inside}
        chosen = [x for x in self.seconds if x in alone or x.partition("::")[0] in shared]
        by_file = dict[str, float]()
        for test in chosen:
            file = test.partition("::")[0]
            by_file[file] = by_file.get(file, 0.0) + self.seconds[test]
        chosen.sort(key=lambda test: (by_file[test.partition("::")[0]], self.seconds[test]))
        until = itertools.accumulate(self.seconds[test] for test in chosen)
        return [x for x, total in zip(chosen, until, strict=True) if total <= MOST_SECONDS]

    def first_failing(self, tests: list[str]) -> str | None:
        """None if all pass."""
        printed, code = self._run(["-x", *tests]) if tests else ("", 0)
        failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.M)
        return failures[0] if failures else f"exit code {code}" if code else None

    def _run(self, words: list[str]) -> tuple[str, int | None]:
        """What pytest prints, and its exit code. It runs in a fork of this process, which has
        imported what all tests import."""
        with tempfile.NamedTemporaryFile() as output:
            fork = multiprocessing.get_context("fork")
            process = fork.Process(target=self._pytest, args=(words, output.name))
            process.start()
            process.join()
            return Path(output.name).read_text(), process.exitcode

    def _pytest(self, words: list[str], output: str) -> None:
        is_recording = "--cov-append" in words
        if not is_recording:
            resource.setrlimit(resource.RLIMIT_CPU, (5 * MOST_SECONDS, 5 * MOST_SECONDS))
        paths = [str(self.source_root), str(ROOT / "tests")]
        sys.path[:0] = paths
        # Compiled once, by the run that records; a changed file has another time.
        sys.dont_write_bytecode = not is_recording
        sys.pycache_prefix = str(self.source_root.with_name("bytecode"))
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ["COVERAGE_FILE"] = self._lines
        os.chdir(ROOT)
        with Path(output).open("w") as file, redirect_stdout(file), redirect_stderr(file):
            ignored = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins imported here
            always = ["-vv", "--tb=no", "-p", "no:cacheprovider", "-W", ignored]
            sys.exit(pytest.main([*always, *words], plugins=[AsListed(words)]))


class AsListed:
    """A plugin of pytest: tests run in the order in which they are listed."""

    def __init__(self, words: list[str]) -> None:
        self.places = {word: place for place, word in enumerate(words)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.places.get(item.nodeid, 0))


def main(count: int, seed: int, files: list[str]) -> None:
    noticed, recorded = 0, set[str]()
    changes = choose_changes(count, seed, files)
    with tempfile.TemporaryDirectory() as scratch:
        source_root = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", source_root)
        tests = Tests(source_root)
        for change in changes:
            if new := [file for file in tests_for(change.path) if file not in recorded]:
                tests.record(new)
                recorded.update(new)
            running = tests.running(change)
            copy = Path(scratch) / change.path
            copy.write_text(change.changed)
            failing = tests.first_failing(running)
            shutil.copy2(ROOT / change.path, copy)
            noticed += failing is not None
            word, by = ("noticed", failing) if failing else ("NOT NOTICED", f"{len(running)} tests")
            print(f"{word} {change.path}:{change.words} ({by})", flush=True)
    print(f"{noticed} of {len(changes)} changes noticed")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(CORE))
