"""`just mutate`: each change is one operator or constant, and tests that fail notice it."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.modules import load_module

ROOT = Path(__file__).parents[2]
SOURCE = '''
def median(values: list[int], low: int = 3) -> float:
    """Of 5 values."""
    if not values or low is None:
        raise ValueError(f"{1 + 1} values")
    return values[len(values) // 2] * 2 / 4 - (low < 7)

class Values:
    def __repr__(self) -> str:
        return "v" * 8
'''


@pytest.fixture(scope="module")
def tool() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return load_module(ROOT / "tools" / "mutate.py")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_every_change_is_one_operator_or_constant(tool: Any) -> None:
    number_of_places = len(list(tool.places(ast.parse(SOURCE))))
    changes = [tool.change_one("a.py", SOURCE, number) for number in range(number_of_places)]
    assert {change.words for change in changes} == {
        "2: 3 -> 4",
        "4: not values or low is None -> not values and low is None",
        "4: not values -> values",
        "4: low is None -> low is not None",
        "6: values[len(values) // 2] * 2 / 4 - (low < 7) -> "
        "values[len(values) // 2] * 2 / 4 + (low < 7)",
        "6: values[len(values) // 2] * 2 / 4 -> values[len(values) // 2] * 2 * 4",
        "6: values[len(values) // 2] * 2 -> values[len(values) // 2] + 2",
        "6: 2 -> 3",
        "6: 4 -> 5",
        "6: low < 7 -> low <= 7",
        "6: 7 -> 8",
    }
    for change in changes:
        assert change.changed != ast.unparse(ast.parse(SOURCE))
        (line,) = change.lines
        assert change.words.startswith(f"{line}: ")


def test_changes_differ_and_files_take_turns(tool: Any) -> None:
    files = ["src/statetrim/cut/request.py", "src/statetrim/option_types.py"]
    changes = tool.choose_changes(400, 0, files)
    assert len({(change.path, change.changed) for change in changes}) == len(changes) < 400
    assert [change.path for change in changes[:4]] == files * 2
    assert tool.choose_changes(3, 1, files) != tool.choose_changes(3, 2, files)


def test_the_tests_of_a_file(tool: Any) -> None:
    of_folder = tool.tests_for("src/statetrim/cut/request.py")
    assert "tests/cut/test_request.py" in of_folder and "tests/serving/test_target.py" in of_folder
    assert tool.tests_for("src/statetrim/option_types.py") == ["tests/test_options.py"]
    tests = tool.tests_for("src/statetrim/artifacts/statistics.py")
    assert (
        "tests/calibration/test_sources.py" in tests and "tests/artifacts/test_record.py" in tests
    )
    assert all((ROOT / path).is_file() and tool.tests_for(path) for path in tool.CORE)


def test_a_change_is_noticed_by_a_test_that_runs_its_line(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    package, test = tmp_path / "src" / "counted", tmp_path / "test_count.py"
    package.mkdir(parents=True)
    source = "ZERO = 0\n\ndef count():\n    return 3\n\ndef other():\n    return 9\n"
    (package / "__init__.py").write_text(source)
    test.write_text(
        "import time\nfrom counted import count, other\n\n"
        "def test_slow():\n    time.sleep(0.2)\n    assert count() == 3\n\n"
        "def test_count():\n    assert count() >= 3\n\n"
        "def test_other():\n    assert other()\n"
    )
    tests = tool.Tests(tmp_path / "src")
    tests.record(["test_count.py"])
    every = {"other", "count", "slow"}
    for number, expected in enumerate((every, {"count", "slow"}, {"other"})):
        change = tool.change_one("src/counted/__init__.py", source, number)
        running = [name.rpartition("::test_")[2] for name in tests.running(change)]
        assert set(running) == expected and ("slow" not in expected or running[-1] == "slow")
        (package / "__init__.py").write_text(change.changed)
        failing = tests.first_failing(tests.running(change))
        assert failing is None if number != 1 else failing.endswith("::test_slow")
