"""A family from outside the package: the example file of docs/, run as documented."""

import json
import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import statetrim as st
from helpers import tiny
from helpers.doc_pages import ROOT, code
from helpers.sums import assert_statistics_close
from statetrim.commands import app
from statetrim.families import family_from_file
from statetrim.methods import find_method
from statetrim.storage.text import Sequences
from statetrim.surgery.check import compare_cut

PAGE = ROOT / "docs" / "add-a-family.md"
KEEP = 6


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two example files, a text, a model of the type `strange`, and that model as
    `qwen3_5_text`, which the package supports."""
    root = tmp_path_factory.mktemp("outside")
    (root / "strange_family.py").write_text(code(PAGE, "python")[0])
    tiny.write_text(root / "text.jsonl", 2000)
    known_path = tiny.build("qwen3_5_text", root / "known")
    strange_path = shutil.copytree(known_path, root / "strange")
    names: Any = {"model_type": "strange", "architectures": ["StrangeForCausalLM"]}
    tiny.edit_json(strange_path / "config.json", **names)
    return root


@pytest.fixture
def run(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command on the strange model with the family's file and on the supported one without
    it; `{}` in an argument is the model's name. Returns what both printed."""
    monkeypatch.chdir(workspace)

    def both(*arguments: object) -> tuple[str, str]:
        printed = []
        for name, family in (("strange", ["--family", "strange_family.py"]), ("known", [])):
            words = [str(argument).format(name) for argument in arguments]
            result = CliRunner().invoke(app, [*words, *family], catch_exceptions=False)
            assert result.exit_code == 0, result.output
            printed.append(result.stdout)
        return printed[0], printed[1]

    return both


def test_it_is_inspected_with_what_fits_in_a_memory(run: Any) -> None:
    strange_report, known_report = map(
        json.loads, run("inspect", "{}", "--to", f"{KEEP}x100%", "--memory-gib", 1, "--json")
    )
    assert (
        strange_report["model_type"] == "strange" and strange_report["after"]["head_k_dim"] == KEEP
    )
    for field in ("layers", "before", "after", "parameters", "parameters_after"):
        assert strange_report[field] == known_report[field], field
    *warnings, unknown = strange_report["warnings"]
    assert warnings == known_report["warnings"] and "not known to serve strange" in unknown
    capacity = strange_report["deployment"]["capacity"]
    cut_rows = [row for row in capacity if row["is_cut"]]
    assert cut_rows and cut_rows == known_report["deployment"]["capacity"]
    assert capacity[0]["fit"]["token_bytes"] > 0, "its softmax layers count"
    assert strange_report["deployment"]["engines"] == [], "no engine was tested with it"


def test_it_is_calibrated_cut_checked_analysed_and_timed(run: Any, workspace: Path) -> None:
    text = ("--text", "text.jsonl", "--tokens", 1024)
    run("calibrate", "{}", *text, "--length", 32, "--for", "product", "-o", "{}.safetensors")
    statistics = [st.Statistics.load(workspace / f"{n}.safetensors") for n in ("strange", "known")]
    assert statistics[0].layers
    assert_statistics_close(*statistics, 0.0)

    run("select", "{}", "--statistics", "{}.safetensors", "--to", f"{KEEP}x100%", "-o", "{}.json")
    plan, known_plan = (st.Plan.load(workspace / f"{n}.json") for n in ("strange", "known"))
    assert plan.digest == known_plan.digest

    run("prune", "{}", "{}.json", "-o", "{}-small")
    for file in (workspace / "known-small").glob("*.safetensors"):
        assert (workspace / "strange-small" / file.name).read_bytes() == file.read_bytes()

    family = family_from_file(workspace / "strange_family.py")
    model, small = (st.open(workspace / name, family) for name in ("strange", "strange-small"))
    checks = compare_cut(model, plan, small)  # includes decoding with the cache
    assert checks.runtime == "transformers" and checks.sliced_against_masked < 1e-4

    run("analyze", "{}", *text, "--length", 320, "-o", "{}-analysis.json")
    first, second = (
        st.Analysis.load(workspace / f"{n}-analysis.json") for n in ("strange", "known")
    )
    assert torch.equal(first.utilization, second.utilization)

    timing = ("--batch-sizes", 2, "--lengths", 16, "--rounds", 1)
    run("benchmark", "{}-small", "--baseline", "{}", *timing, "-o", "{}-timings.json")
    timings, known_timings = (
        st.Timings.load(workspace / f"{n}-timings.json") for n in ("strange", "known")
    )
    for metric in ("state bytes", "convolution bytes", "key-value bytes", "mixer prefill work"):
        value = timings.first("strange-small", metric).value
        assert value == known_timings.first("known-small", metric).value > 0
    assert timings.first("strange-small", "decode").value > 0


def test_it_is_trimmed_by_one_command(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    command = "trim strange --family strange_family.py --to 6x100% --text text.jsonl --tokens 960"
    few = "--limit 2 --no-control -o trimmed"
    result = CliRunner().invoke(app, f"{command} {few}".split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = (workspace / "trimmed" / "statetrim" / "report" / "report.html").read_text()
    assert re.search(r"state 12 x (\d+) → 6 x \1", page)


def test_an_edited_family_makes_another_model(workspace: Path, tmp_path: Path) -> None:
    """A cut or statistics by rows that the family no longer describes are not taken for its own."""
    family, text = tmp_path / "family.py", (workspace / "strange_family.py").read_text()
    digests = set()
    for content in (text, text, f"{text}# edited"):
        family.write_text(content)
        digests.add(st.open(workspace / "strange", family_from_file(family)).digest)
    assert len(digests) == 2


def test_statistics_say_which_file_defined_them(workspace: Path, tmp_path: Path) -> None:
    """So that a saved layer of an edited definition is not resumed."""
    path = tmp_path / "energy.py"
    path.write_text(
        "from statetrim.methods.contract import needs\n\n"
        "@needs('query_gram')\ndef select(evidence, keep):\n    return None\n"
    )
    data = Sequences(torch.arange(1, 33).unsqueeze(0), {})
    collected = st.calibrate(workspace / "known", data, methods=[str(path)])
    assert collected.lineage["methods"] == {path.name: sha256(path.read_bytes()).hexdigest()}


def test_without_the_family_the_model_type_is_unknown(workspace: Path) -> None:
    with pytest.raises(st.StatetrimError, match="'strange' is not supported; these are: bamba"):
        st.open(workspace / "strange")


def test_a_file_without_a_family_or_method_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    with pytest.raises(st.StatetrimError, match="no FAMILY"):
        family_from_file(empty)
    with pytest.raises(st.StatetrimError, match="no function select"):
        find_method(str(empty))
