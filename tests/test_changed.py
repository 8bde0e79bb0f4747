"""`just check` runs the tests of changed files; every file of the package has tests."""

from pathlib import Path
from typing import Any

import pytest

from helpers.modules import load_module

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> Any:
    return load_module(ROOT / "tools" / "changed_tests.py")


def test_the_tests_in_the_place_of_a_change(tool: Any) -> None:
    for changed, tests in (
        (["src/statetrim/selection/select.py"], ["tests/selection"]),
        (["src/statetrim/geometry.py"], ["tests/test_geometry.py"]),
        (["src/statetrim/maths/linalg.py", "tests/maths/test_linalg.py"], ["tests/maths"]),
        (["tests/storage/test_that_was_removed.py"], []),
    ):
        assert tool.select(changed) == sorted({*tests, *tool.GUARDS})
    assert tool.select(["results/recall.md", "pyproject.toml"]) == ["tests"]


def test_every_place_exists(tool: Any) -> None:
    for place, tests in tool.PLACES.items():
        assert (ROOT / place).exists(), place
        assert (ROOT / tests).exists(), tests
    assert all((ROOT / guard).is_file() for guard in tool.GUARDS)
    for folder in (ROOT / "src" / "statetrim").iterdir():
        if folder.is_dir() and list(folder.glob("*.py")):
            path = f"src/statetrim/{folder.name}/__init__.py"
            assert tool.tests_of(path) != "tests", f"{folder.name} has no tests of its own"
