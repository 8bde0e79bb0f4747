"""Files that statetrim did not write are not removed, overwritten or written through a link; on
Windows, without `fcntl`, writing is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import raw
from helpers.refusal import assert_refused, run
from helpers.tiny import Load


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return raw.build(tmp_path / "model", "qwen3_5_text")


def select(model: Path, out: Path) -> list[str]:
    return ["select", str(model), "--method", "l1", "--to", "8x100%", "-o", str(out)]


def test_a_partial_directory_with_a_file_of_yours_stays(model: Path, tmp_path: Path) -> None:
    partial = tmp_path / "plan.json.partial"
    partial.mkdir()
    (partial / "thesis.txt").write_text("mine")
    assert_refused(select(model, tmp_path / "plan.json"), "did not write", tmp_path)


def test_names_like_our_temporary_files_are_left_alone(model: Path, tmp_path: Path) -> None:
    """`select -o notes.json` once destroyed `notes.json.tmp`."""
    names = ("notes.json.tmp", ".notes.json.tmp", "notes.tmp", "notes.json~")
    for name in names:
        (tmp_path / name).write_text("mine")
    assert run(select(model, tmp_path / "notes.json"))[0] is None
    for name in names:
        assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.json", "notes.json.tmp", "notes.json.partial"])
def test_nothing_is_written_through_a_link(model: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "diary.txt"
    target.write_text("mine")
    (tmp_path / name).symlink_to(target)
    run(select(model, tmp_path / "notes.json"))
    assert target.read_text() == "mine" and (tmp_path / name).is_symlink()


def test_a_result_that_is_there_stays(model: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("mine")
    assert_refused(select(model, tmp_path / "plan.json"), "not overwritten", tmp_path)


def test_an_interrupted_evaluation_keeps_files_of_yours(checkpoint: Any, tmp_path: Path) -> None:
    """`evaluate --resume` once removed all of OUT.partial."""
    out = tmp_path / "scores.json"
    (tmp_path / "scores.json.partial").mkdir()
    (tmp_path / "scores.json.partial" / "mine").write_text("mine")
    with pytest.raises(st.StatetrimError, match="did not write"):
        st.evaluate(
            [], baseline=checkpoint("delta_net"), tasks=["mqar"], limit=2, out=out,
            progress=False,
        )  # fmt: skip
    assert (tmp_path / "scores.json.partial" / "mine").read_text() == "mine"


PROGRAM = """
import sys
sys.modules["fcntl"] = None
model, out = sys.argv[1:]
from statetrim.commands import main
for words in (["inspect", model], ["select", model, "--method", "l1", "--to", "8x100%", "-o", out]):
    sys.argv = ["statetrim", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def test_a_model_is_inspected_and_writing_is_refused_in_a_sentence(
    checkpoint: Load, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "plan.json"
    command = [sys.executable, "-c", PROGRAM, checkpoint("qwen3_next"), out]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert "layers have a state" in ran.stdout and ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("statetrim: on Windows statetrim only inspects")
    assert not out.parent.exists()
