"""`just check` runs the tests of changed files; every file of the package has tests."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> Any:
    path = ROOT / "tools" / "changed_tests.py"
    spec = importlib.util.spec_from_file_location("changed_tests", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["src/statetrim/selection/select.py"], ["tests/selection"]),
        (["src/statetrim/console/measures/analyze.py"], ["tests/cli"]),
        (["src/statetrim/geometry.py"], ["tests/test_geometry.py"]),
        (["src/statetrim/maths/linalg.py", "tests/maths/test_linalg.py"], ["tests/maths"]),
        (["results/README.md", "CHANGELOG.md"], []),
        (["README.md", "docs/recall.md"], ["tests/docs", "tests/test_readme.py"]),
        (["tests/storage/test_hub.py"], ["tests/storage/test_hub.py"]),
        (["tests/storage/test_that_was_removed.py"], []),
        ([], []),
    ],
)
def test_the_tests_in_the_place_of_a_change(
    tool: Any, changed: list[str], tests: list[str]
) -> None:
    assert tool.select(changed) == sorted({*tests, *tool.GUARDS})


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "tests/conftest.py", "src/statetrim/defaults.py", "new/place.txt"]
)
def test_what_anything_may_depend_on_needs_all(tool: Any, path: str) -> None:
    assert tool.select(["docs/recall.md", path]) == ["tests"]


def test_every_place_exists(tool: Any) -> None:
    for place, tests in tool.PLACES.items():
        assert (ROOT / place).exists(), place
        assert (ROOT / tests).exists(), tests
    assert all((ROOT / guard).is_file() for guard in tool.GUARDS)
    for folder in (ROOT / "src" / "statetrim").iterdir():
        if folder.is_dir() and list(folder.glob("*.py")):
            path = f"src/statetrim/{folder.name}/__init__.py"
            assert tool.tests_of(path) != "tests", f"{folder.name} has no tests of its own"
