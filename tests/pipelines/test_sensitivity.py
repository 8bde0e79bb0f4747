"""`analyze --sensitivity`: from a model and a text to the sensitivity of each layer."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import statetrim as st
from helpers.tiny import Load
from statetrim.commands import app
from statetrim.progress import Progress

OPTIONS: dict[str, Any] = {"calibration_tokens": 1024, "windows": 2, "rows": 2}


def test_every_layer_width_and_axis(checkpoint: Load, text: Path) -> None:
    model = st.open(checkpoint("delta_net"))
    reports = list[Progress]()
    sensitivity = st.sensitivity(model, text, progress=reports.append, **OPTIONS)
    geometry = model.geometry
    keys, values = geometry.head_k_dim, geometry.head_v_dim
    assert sensitivity.layers == list(geometry.layers)
    assert sensitivity.variants == [
        ("key", keys // 2),
        ("key", keys // 4),
        ("value", values // 2),
        ("value", values // 4),
    ]
    cuts = len(sensitivity.layers) * len(sensitivity.variants)
    assert [(p.done, p.total) for p in reports] == [(n, cuts) for n in range(1, cuts + 1)]
    assert sensitivity.lineage["data"]["skip"] == OPTIONS["calibration_tokens"]  # unseen text


def test_values_that_cannot_be_cut_are_left_out(checkpoint: Load, text: Path) -> None:
    model = st.open(checkpoint("kda"))
    sensitivity = st.sensitivity(model, text, widths=[0.5], **OPTIONS)
    assert {axis for axis, _ in sensitivity.variants} == {"key"}


@pytest.mark.usefixtures("quick_sensitivity")
def test_the_command_writes_prints_and_is_reported(
    checkpoint: Load, pair: Any, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "found.json"
    command = ["analyze", str(checkpoint("delta_net")), "--sensitivity", "--text", str(text)]
    command += ["--tokens", "512", "--length", "64", "--widths", "0.5", "-o", str(out), "--json"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    printed, sensitivity = json.loads(run.stdout), st.Sensitivity.load(out)
    assert sensitivity.lineage["data"]["length"] == 64
    assert printed["finding"] == sensitivity.sentence
    assert len(printed["rows"]) == len(sensitivity.cuts)
    again = CliRunner().invoke(app, command)
    assert "not overwritten" in str(again.exception)
    page = st.report(pair("delta_net")[1], [out], out=tmp_path / "page").read_text()
    assert sensitivity.sentence in page and "Change of NLL in nats per token" in page
    command[command.index(str(out))] = str(tmp_path / "other.json")
    for unused in (["--baseline", str(checkpoint("delta_net"))], ["--every", "4"]):
        refused = CliRunner().invoke(app, [*command, *unused])
        assert f"does not use {unused[0]}; leave it out" in str(refused.exception)
