"""A family and a method from outside the package: the two files that docs/ shows, used as told."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import statetrim as st
from helpers import tiny
from statetrim.cli import app
from statetrim.families import family_from_file
from statetrim.methods import find_method
from statetrim.surgery.check import compare_cut

DOCS = Path(__file__).parents[2] / "docs"
KEEP = 6


def code_of(page: str) -> str:
    """The first Python block of a documentation page."""
    found = re.search(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two files, a text, a model of a type that only the file knows, and the same
    model under the name that the package knows."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "strange_family.py").write_text(code_of("add-a-family.md"))
    (folder / "largest_query.py").write_text(code_of("add-a-method.md"))
    tiny.write_text(folder / "text.jsonl", 2000)
    known = tiny.build("qwen3_5_text", folder / "known")
    strange = shutil.copytree(known, folder / "strange")
    config = json.loads((strange / "config.json").read_text())
    config |= {"model_type": "strange", "architectures": ["StrangeForCausalLM"]}
    (strange / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command on the strange model with the family's file, and on its known twin without;
    `{}` in an argument stands for the model. Returns what both printed."""
    monkeypatch.chdir(place)

    def both(*arguments: object) -> tuple[str, str]:
        printed = []
        for name, family in (("strange", ["--family", "strange_family.py"]), ("known", [])):
            given = [str(argument).format(name) for argument in arguments]
            result = CliRunner().invoke(app, [*given, *family], catch_exceptions=False)
            assert result.exit_code == 0, result.output
            printed.append(result.stdout)
        return printed[0], printed[1]

    return both


def test_it_is_inspected_with_what_fits_in_a_memory(run: Any) -> None:
    found, known = map(
        json.loads, run("inspect", "{}", "--keep", KEEP, "--memory-gib", 1, "--json")
    )
    assert found["model_type"] == "strange" and found["after"]["head_k_dim"] == KEEP
    for field in ("layers", "before", "after", "parameters", "parameters_after", "warnings"):
        assert found[field] == known[field], field
    capacity = found["deployment"]["capacity"]
    assert capacity and capacity == known["deployment"]["capacity"]
    assert capacity[0]["key_value_bytes"] > 0, "its softmax layers count"
    assert found["deployment"]["engines"] == [], "nobody measured who serves it"


def test_it_is_calibrated_cut_checked_analysed_and_timed(run: Any, place: Path) -> None:
    text = ("--text", "text.jsonl", "--tokens", 1024)
    run("calibrate", "{}", *text, "--length", 32, "--for", "product", "-o", "{}.safetensors")
    statistics = [st.Statistics.load(place / f"{n}.safetensors") for n in ("strange", "known")]
    assert statistics[0].sum_names == statistics[1].sum_names and statistics[0].layers
    for layer, sums in statistics[0].layers.items():
        for part in statistics[0].sum_names:
            assert torch.equal(getattr(sums, part), getattr(statistics[1].layers[layer], part))

    run("select", "{}", "--statistics", "{}.safetensors", "--keep", KEEP, "-o", "{}.json")
    plan, known = (st.Plan.load(place / f"{n}.json") for n in ("strange", "known"))
    assert all(torch.equal(plan.kept[layer], known.kept[layer]) for layer in known.kept)

    run("prune", "{}", "{}.json", "-o", "{}-small")
    for file in (place / "known-small").glob("*.safetensors"):
        assert (place / "strange-small" / file.name).read_bytes() == file.read_bytes()

    family = family_from_file(place / "strange_family.py")
    model, small = (st.open(place / name, family) for name in ("strange", "strange-small"))
    checks = compare_cut(model, plan, small)  # in which it decodes with its cache
    assert checks.runtime == "transformers" and checks.sliced_against_masked < 1e-4

    run("analyze", "{}", *text, "--length", 320, "-o", "{}-analysis.json")
    first, second = (st.Analysis.load(place / f"{n}-analysis.json") for n in ("strange", "known"))
    assert torch.equal(first.utilization, second.utilization)

    timing = ("--batch-sizes", 2, "--lengths", 16, "--rounds", 1)
    run("benchmark", "{}-small", "--baseline", "{}", *timing, "-o", "{}-timings.json")
    timings, known_timings = (
        st.Timings.load(place / f"{n}-timings.json") for n in ("strange", "known")
    )
    for metric in ("state bytes", "convolution bytes", "key-value bytes", "mixer prefill work"):
        value = timings.find("strange-small", metric).value
        assert value == known_timings.find("known-small", metric).value > 0
    assert timings.find("strange-small", "decode").value > 0


def test_it_is_trimmed_by_one_command(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    command = "trim strange --family strange_family.py --keep 6 --text text.jsonl --tokens 960"
    few = "--limit 2 --no-control --no-benchmark -o trimmed"
    result = CliRunner().invoke(app, f"{command} {few}".split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = (place / "trimmed" / "statetrim" / "report" / "report.html").read_text()
    assert re.search(r"state 12 x (\d+) → 6 x \1", page)


def test_the_documented_method_works_from_outside(run: Any, place: Path) -> None:
    run("select", "{}", "--method", "largest_query.py", "--keep", 5, "-o", "{}-largest.json")
    run("prune", "{}", "{}-largest.json", "-o", "{}-largest")
    made = st.Plan.load(place / "strange-largest.json")
    assert made.method == "largest_query" and made.keep == 5
    before, after = weights(place / "strange"), weights(place / "strange-largest")
    for layer in made.kept:
        name = f"model.layers.{layer}.linear_attn.in_proj_qkv.weight"
        # rows are [ q | k | v ], of 2 key heads with 12 channels each
        q, k, v = before[name].split([24, 24, 32])
        blocks = [part.unflatten(0, (2, 12)) for part in (q, k)]
        largest = blocks[0].square().sum(-1).topk(5).indices.sort(dim=1).values
        assert torch.equal(made.kept[layer], largest)
        kept = [torch.cat([part[head][largest[head]] for head in range(2)]) for part in blocks]
        assert torch.equal(after[name], torch.cat([*kept, v]))


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()}


def test_without_the_family_the_model_type_is_unknown(place: Path) -> None:
    with pytest.raises(st.StatetrimError, match="'strange' is not supported; these are: bamba"):
        st.open(place / "strange")


def test_a_file_without_a_family_or_method_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    with pytest.raises(st.StatetrimError, match="no FAMILY"):
        family_from_file(empty)
    with pytest.raises(st.StatetrimError, match="no function select"):
        find_method(str(empty))
