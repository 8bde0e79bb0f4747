"""Today's code reads version 1 of every artifact, as stored in tests/data/formats-1.

The files never change. A new version of a format gets a directory of its own next to them.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

import statetrim as st
from helpers import tiny
from helpers.refusal import run
from statetrim.artifacts.decision import Decision, Prediction
from statetrim.artifacts.steps import PruneRecord, RecoverRecord, RefitRecord, TrimRecord
from statetrim.pipelines.recipe import read_recipe, recipe_of_result
from statetrim.snapshots.stream import StateFile
from statetrim.storage.json_file import read_json

DATA = Path(__file__).parents[1] / "data" / "formats-1"
SOURCE = Path(st.__file__).parent


READERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = {
    "plan.json": (st.Plan.load, lambda x: (x.to, x.axes["key"].method), ("8x4", "l1")),
    "statistics.safetensors": (st.Statistics.load, lambda x: int(x.layers[1].tokens), 256),
    "refit-statistics.safetensors": (
        st.Statistics.load, lambda x: x.layers[0]["target_moment"] is not None, True,
    ),
    "scores.json": (st.Scores.load, lambda x: {s.task for s in x.scores}, {"mqar"}),
    "timings.json": (st.Timings.load, lambda x: x.models, ["model", "small"]),
    "analysis.json": (st.Analysis.load, lambda x: (sorted(x.layers), x.burn_in), ([0, 1], 8)),
    "sensitivity.json": (st.Sensitivity.load, lambda x: len(x.cuts), 4),
    "memory.json": (st.Memory.load, lambda x: len(x.forgetting), 3),
    "verification.json": (st.Verification.load, lambda x: (x.engine, x.faults), ("mlx", {})),
    "prediction.json": (Prediction.load, lambda x: x.ranked, ["8x8", "6x10"]),
    "small/statetrim/decision.json": (Decision.load, lambda x: x.chosen, "7x6"),
    "small/statetrim/plan.json": (st.Plan.load, lambda x: x.to, "7x6"),
    "snapshots.json": (st.Snapshots.load, lambda x: len(x.codes), 6),
    "prompt.safetensors": (StateFile.load, lambda x: x.header.tolerance, 0.05),
    "small/statetrim/prune.json": (PruneRecord.load, lambda x: (x.source or "")[:6], "fc87e5"),
    "small/statetrim/refit.json": (RefitRecord.load, lambda x: [*x.layers], ["0", "1"]),
    "small/statetrim/recover.json": (RecoverRecord.load, lambda x: x.curve[0]["tokens"], 512),
    "small/statetrim/trim.json": (TrimRecord.load, lambda x: (x.tokens, x.warnings), (256, [])),
    "recipe.yaml": (read_recipe, lambda x: (x["to"], x["tasks"]), ("8x100%", ["mqar"])),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_it_is_read_and_says_what_was_written(name: str) -> None:
    load, fact, expected = READERS[name]
    assert fact(load(DATA / name)) == expected


@pytest.mark.parametrize("name", [name for name in READERS if name.endswith(".json")])
def test_a_field_of_a_later_version_is_ignored(name: str, tmp_path: Path) -> None:
    load, fact, expected = READERS[name]
    copy = Path(shutil.copy(DATA / name, tmp_path))
    if (DATA / name).with_suffix(".safetensors").exists():
        shutil.copy((DATA / name).with_suffix(".safetensors"), tmp_path)
    tiny.edit_json(copy, a_later_field={"a": [1]})
    assert fact(load(copy)) == expected


def test_every_kind_that_is_written_lies_there() -> None:
    headers = [read_json(path, 2**20) for path in DATA.rglob("*.json")]
    for path in DATA.rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            headers.append(json.loads((file.metadata() or {}).get("statetrim", "{}")))
    stored = {str(header.get("format")) for header in headers if header.get("version") == 1}
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    written = set(re.findall(r"\b(?:header\(|KIND = )\"([a-z ]+)\"", source))
    assert len(written) > 10
    missing = {f"statetrim {kind}" for kind in written} - stored
    assert not missing, "add one of each new kind to tests/data/formats-1"


def test_commands_take_them(tmp_path: Path) -> None:
    """The commands that read stored artifacts and write a plan, a checkpoint or a report."""
    shutil.copytree(DATA, tmp_path / "all")
    artifacts = tmp_path / "all"
    plan = st.select(
        artifacts / "model", "product", "8x100%", statistics=artifacts / "statistics.safetensors"
    )
    assert plan.to == "8x100%"
    small = st.prune(
        artifacts / "model", artifacts / "plan.json", tmp_path / "small", progress=False
    )
    assert (small.geometry.head_k_dim, small.geometry.head_v_dim) == (8, 4)
    fitted = st.refit(
        artifacts / "small", artifacts / "refit-statistics.safetensors", out=tmp_path / "fitted",
        progress=False,
    )  # fmt: skip
    assert fitted.geometry == st.open(artifacts / "small").geometry
    assert recipe_of_result(artifacts / "small")["to"] == "0.5"
    names = [f"{x}.json" for x in ("scores", "timings", "verification", "sensitivity", "memory")]
    cut, model, *files = (str(artifacts / name) for name in ("small", "model", *names))
    code, err, _ = run(["report", cut, *files, "--baseline", model, "-o", str(tmp_path / "report")])
    assert code is None, err
    page = (tmp_path / "report" / "report.md").read_text()
    for heading in ("State", "Quality", "Speed", "Recovery", "Reproduce"):
        assert re.search(rf"^#+ .*{heading}", page, re.MULTILINE | re.IGNORECASE), heading
