"""`just engines`: a row that was read holds for a new release only if what it names is the same."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from helpers.modules import load_module

newest = load_module(Path(__file__).parents[2] / "tools" / "engines" / "newest.py")
OLD = "LIMIT = 128\n\ndef shape(config):\n    return config.keys, LIMIT  # both\n"
ROW = {
    "engine": "vLLM", "versions": "0.8", "hardware": ["Hopper"], "families": ["Qwen3.5"],
    "shape": ["any"], "date": "2026-01-01", "evidence": "source",
}  # fmt: skip


def checked(folder: Path, source: str, new: str) -> tuple[dict[str, Any], Any]:
    """The row with this source, and its line, where release 0.9.0 has another layers/gdn.py."""
    for release, text in (("0.8.0", OLD), ("0.9.0", new)):
        wheel = folder / f"vllm-{release}" / "vllm.whl"
        wheel.parent.mkdir()
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("vllm/layers/gdn.py", text)
    check = object.__new__(newest.Check)
    check.versions, check.sources = {"vllm": "0.9.0"}, newest.Sources(folder)
    return check.by_hand(ROW | {"source": f"vllm 0.8.0: {source}"}, {})  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("source", "new", "holds"),
    [
        ("layers/gdn.py", OLD.replace("# both", "# keys and values"), True),
        ("layers/gdn.py", OLD.replace("128", "64"), False),
        ("layers/gdn.py, def_shape and shape", OLD + "\nOTHER = 1\n", False),
        ("layers/gdn.py, kda_shape", OLD.replace("def shape", "def kda_shape"), False),
        ("kda_shape", OLD, False),  # nothing that it names was there
    ],
)
def test_a_source_row_holds_if_what_it_names_reads_the_same(
    tmp_path: Path, source: str, new: str, holds: bool
) -> None:
    row, line = checked(tmp_path, source, new)
    assert line.holds == holds, line
    assert line.outcome.startswith("equal" if holds else "changed: ")
    expected = ("0.8-0.9", f"vllm 0.9.0: {source}") if holds else ("0.8", f"vllm 0.8.0: {source}")
    assert (row["versions"], row["source"]) == expected


def test_of_a_file_only_the_named_definition_counts(tmp_path: Path) -> None:
    new = OLD + "\ndef other_shape(config):\n    return 1\n"
    assert newest.definitions("x", new, {"other_shape"}).keys() == {"x other_shape"}
    named = OLD.replace("def shape", "def kda_shape")
    before = newest.definitions("x", named, {"kda_shape"})
    assert before == newest.definitions("x", named.replace("128", "64"), {"kda_shape"})
    assert before != newest.definitions("x", named.replace("keys", "values"), {"kda_shape"})


def test_every_source_row_of_an_engine_on_the_registry_names_its_release() -> None:
    rows = json.loads(newest.record.HAND_WRITTEN_ROWS.read_text())["rows"]
    for row in rows:
        if row["engine"] not in ("TensorRT-LLM", "statetrim.portable"):
            match = newest.RELEASE.match(row["source"])
            if row["evidence"] != "report" and not row["source"].startswith("llama.cpp 2026-10"):
                assert match, row["source"]


def test_a_run_row_of_this_environment_holds_only_for_what_is_installed_here() -> None:
    check = object.__new__(newest.Check)
    check.versions, check.tested = {"transformers": "99.0.0"}, {}
    outcome = check.run_again("transformers", "transformers 5.1.0; tests/none.py")
    assert outcome.startswith("not run: transformers ") and outcome.endswith(" is installed")
