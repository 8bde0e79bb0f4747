"""Interpreted kernels: a sample is run again, and the matrix and the documentation state what the
recorded runs found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.modules import load_module

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tools" / "kernels"
needs_fla = pytest.mark.skipif(not tiny.FLA_INSTALLED, reason="fla or triton is not installed")


@pytest.fixture(scope="module")
def record() -> Any:
    return load_module(KERNELS / "record.py")


def run(script: str, out: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(KERNELS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in out.read_text().splitlines()]


@needs_fla
def test_kernels_of_fla_are_right_and_a_planted_fault_is_found(tmp_path: Path, record: Any) -> None:
    """One fault; `just interpret-kernels` plants three, in the kernels of vLLM and SGLang."""
    out = tmp_path / "steps.jsonl"
    lines = run("interpret.py", out, "fla", str(out), "16x16", "--faults", "keys")
    assert [line.get("fault") for line in lines] == [None, "keys"]
    assert_right(lines, record.TOLERANCE)


@needs_fla
@pytest.mark.slow
def test_a_cut_of_a_type_that_only_fla_runs_is_calibrated_and_checked(tmp_path: Path) -> None:
    commands = ("calibrate", "prune", "check")
    out = tmp_path / "commands.jsonl"
    lines = run("interpret_fla.py", out, str(out), "gla", "--commands", *commands)
    assert [line["result"] for line in lines] == ["run"] * 3, lines
    assert lines[0]["kernels"] > 3 and lines[2]["kernels"] > 3
    assert lines[2]["cut = masked"] < 1e-4 and lines[2]["prefill = decode"] < 1e-4


def assert_right(lines: list[dict[str, Any]], tolerance: float) -> None:
    """No step differs, unless a fault was planted: then at least one does, clearly."""
    for line in lines:
        largest = max(value for value in line["differences"].values() if value is not None)
        if "fault" in line:
            assert largest > 2 * tolerance, line
        else:
            assert largest <= tolerance, line


def test_the_recorded_runs_are_right_and_found_the_planted_faults(record: Any) -> None:
    lines = record.lines_of("interpreted.jsonl")
    assert_right(lines, record.TOLERANCE)
    for engine in ("vllm", "sglang"):
        planted = {line["fault"] for line in lines if line["steps"] == engine and "fault" in line}
        assert planted == {"keys", "slot", "gate"}


def test_sums_through_fla_were_those_of_portable_and_cuts_those_of_masked_originals(
    record: Any,
) -> None:
    lines = [line for line in record.lines_of("interpreted-fla.jsonl") if line["result"] == "run"]
    sums = {line["type"]: line for line in lines if line["command"] == "sums"}
    assert set(sums) == set(record.RUN_ON_A_CPU)
    assert max(line["products"] for line in sums.values()) < 1e-6
    assert max(line["gradients"] for line in sums.values()) < 1e-5
    assert max(line.get("cut = masked", 0) for line in lines) < 1e-6


def test_trained_models_gave_the_logits_of_transformers_unless_a_fault_was_planted(
    record: Any,
) -> None:
    lines = record.lines_of("interpreted-model.jsonl")
    own = {
        line["model"]: line["transformers in bfloat16"]["mean difference of a logit"]
        for line in lines
        if "fault" not in line
    }
    for line in lines:
        mean = line["engine"]["mean difference of a logit"]
        if "fault" in line:
            # A gate of the wrong head gives 2.5 times the difference of bfloat16, the others more.
            assert mean > 2 * own[line["model"]], line
        else:
            assert mean < 1.5 * own[line["model"]], line


def test_the_matrix_and_the_page_state_what_was_recorded(record: Any) -> None:
    differences = record.largest_differences(record.lines_of("interpreted.jsonl"))
    rows = json.loads(record.ROWS.read_text())["rows"]
    assert [record.with_evidence(row, differences) for row in rows] == rows
    assert sum(row["evidence"] == "interpreted" for row in rows) > 30
    assert record.PAGE.read_text().endswith(record.MARK + record.tables(rows))
