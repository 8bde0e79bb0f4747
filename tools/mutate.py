"""Change one operator or constant at random, and see whether the tests of that file notice.

    python tools/mutate.py 200 7                                  200 changes of CORE files, seed 7
    python tools/mutate.py 10 7 src/statetrim/maths/paired.py     of these files

The changes are made in a copy of src/. The tests of a file are those that import it and those of
its folder, without slow ones; the quickest run first. Numbers in messages and in `__repr__` are
left alone.
"""

import ast
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import transformers.modeling_layers  # noqa: F401  (most of what tests import, with torch)

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
        "snapshots/prompt", "storage/quantized/blocks",
        "storage/quantized/compare", "storage/quantized/find", "storage/quantized/read",
        "storage/quantized/rewrite", "storage/quantized/scheme", "surgery/check", "surgery/refit",
    )
)  # fmt: skip
"""Files that compute what users decide by, or that keep errors from them."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
"""Operator -> what replaces it."""
MAX_SECONDS = 900  # a change may cause an endless loop


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


def change_one(source: str, number: int) -> tuple[str, str]:
    """The source with a change in the place of this number, and the change in words."""
    tree = ast.parse(source)
    old = list(places(tree))[number]
    new = change_of(old)
    assert new is not None
    words = f"{old.lineno}: {ast.unparse(old)} -> {ast.unparse(new)}"  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(Replace(old, new).visit(tree))), words


def choose_changes(count: int, seed: int, files: list[str]) -> list[tuple[str, str, str]]:
    """For `count` changes, no two the same: the file, its changed source, and the change in words.
    The files take turns."""
    choose, changes = random.Random(seed), []
    sources = {path: (ROOT / path).read_text() for path in files}
    numbers = {path: range(len([*places(ast.parse(sources[path]))])) for path in files}
    shuffled = {path: choose.sample(numbers[path], len(numbers[path])) for path in files}
    for turn in range(max(map(len, numbers.values()))):
        for path in files:
            if turn < len(shuffled[path]):
                changes.append((path, *change_one(sources[path], shuffled[path][turn])))
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
    return list(dict.fromkeys(importing))


def failing_test(source_root: Path, tests: list[str]) -> tuple[str | None, dict[str, float]]:
    """The first test that fails with the package in `source_root`, None if all pass; and the
    seconds of the tests that ran. They run in a fork of this process, which has imported what all
    of them import."""
    with tempfile.NamedTemporaryFile() as output:
        arguments = (source_root, tests, output.name)
        process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
        process.start()
        process.join(MAX_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
            return "it did not end", {}
        printed = Path(output.name).read_text()
    seconds = dict[str, float]()
    for time_text, test in re.findall(r"^([\d.]+)s (?:setup|call) +(.+)$", printed, re.MULTILINE):
        seconds[test] = seconds.get(test, 0.0) + float(time_text)
    if process.exitcode == 0:
        return None, seconds
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    return (failures[0] if failures else f"exit code {process.exitcode}"), seconds


def _run(source_root: Path, tests: list[str], output: str) -> None:
    paths = [str(source_root), str(ROOT / "tests")]
    sys.path[:0] = paths
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(ROOT)
    with Path(output).open("w") as file, redirect_stdout(file), redirect_stderr(file):
        ignored = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins that are imported here
        words = ["-x", "-vv", "--tb=no", "--durations=0", "-p", "no:cacheprovider", "-W", ignored]
        sys.exit(pytest.main([*words, *tests]))


def main(count: int, seed: int, files: list[str]) -> None:
    noticed, seconds, timed = 0, dict[str, float](), set[str]()
    changes = choose_changes(count, seed, files)
    with tempfile.TemporaryDirectory() as scratch:
        source_root = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", source_root)
        for path, changed, words in changes:
            test_files = tests_for(path)
            if new := [file for file in test_files if file not in timed]:
                failing, durations = failing_test(source_root, new)
                if failing:
                    sys.exit(f"{failing} fails without a change")
                seconds |= durations
                timed.update(new)
            tests = [test for test in seconds if test.partition("::")[0] in test_files]
            tests.sort(key=lambda test: seconds[test])
            copy = Path(scratch) / path
            copy.write_text(changed)
            start, (failing, _) = time.time(), failing_test(source_root, tests)
            shutil.copy(ROOT / path, copy)
            noticed += failing is not None
            word = "noticed" if failing else "NOT NOTICED"
            took = time.time() - start
            print(f"{word} {path}:{words} ({failing or 'no test'}, {took:.0f} s)", flush=True)
    print(f"{noticed} of {len(changes)} changes noticed")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(CORE))
