"""Cuts with widths by layer: statetrim runs them, stock code refuses them, --uneven is needed."""

from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.tiny import Load
from statetrim.families.contract import LAYER_WIDTHS_FIELD
from statetrim.runtime.placement import Placement
from statetrim.surgery.check import compare_cut

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths
NO_VALUES = ("kda",)  # its values cannot be cut


def uneven_plan(path: Path) -> tuple[st.Checkpoint, st.Plan]:
    """Keep the first layer; halve the other layers along each axis that can be pruned."""
    model = st.open(path)
    keys, values = model.geometry.head_k_dim, model.geometry.head_v_dim
    narrow = values if model.config["model_type"] in NO_VALUES else values // 2
    widths = f"{model.geometry.layers[0]}={keys}x{values},others={keys // 2}x{narrow}"
    return model, st.select(model, "rand", to=widths)


@tiny.every_type(*tiny.WHOLE_RUNS)
def test_every_family_is_cut_and_runs(model_type: str, checkpoint: Load, tmp_path: Path) -> None:
    model, plan = uneven_plan(checkpoint(model_type))
    small = st.prune(model, plan, tmp_path / "small", uneven=True)
    comparison = compare_cut(model, plan, small)
    assert comparison.sliced_against_masked < 1e-4
    assert comparison.prefill_against_decode <= max(
        1e-4, 2 * comparison.prefill_against_decode_before
    )
    first, *others = small.geometry.layers
    assert small.geometry.shapes[first] == model.geometry.shapes[first]
    values = plan.counts("value") if "value" in plan.axes else dict.fromkeys(others, 24)
    for layer in others:
        assert small.geometry.shapes[layer] == (plan.counts("key")[layer], values[layer])
    from_disk = compare_cut(model, plan, small, placement=Placement(layerwise=True))
    assert from_disk.sliced_against_masked < 1e-4


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5", "mamba2", "delta_net"])
def test_stock_transformers_refuses_it(model_type: str, checkpoint: Load, tmp_path: Path) -> None:
    model, plan = uneven_plan(checkpoint(model_type))
    st.prune(model, plan, tmp_path / "small", uneven=True)
    with pytest.raises(RuntimeError, match="mismatch"):
        tiny.stock_class(model_type).from_pretrained(tmp_path / "small")


def test_only_on_an_explicit_flag_and_the_config_and_the_card_say_so(
    checkpoint: Load, tmp_path: Path
) -> None:
    model, plan = uneven_plan(checkpoint("delta_net"))
    with pytest.raises(st.StatetrimError, match="no stock code loads; say --uneven"):
        st.prune(model, plan, tmp_path / "small")
    assert not (tmp_path / "small").exists()
    small = st.prune(model, plan, tmp_path / "small", uneven=True)
    assert small.config[LAYER_WIDTHS_FIELD] == {"0": [12, 8], "1": [6, 4]}
    card = (small.path / "README.md").read_text()
    assert "**Stock libraries cannot load it**" in card
    assert "MLX-LM run Qwen3-Next and Qwen3.5 with the plugins" in card
    assert small.geometry.state_numel == model.geometry.state_numel * 5 // 8
    engines = st.inspect(small).deployment.engines
    assert engines and not any(line.serves for line in engines)


@pytest.mark.parametrize(("widths", "message"), load_cases("layer-widths"))
def test_a_config_that_lies_is_refused(
    widths: object, message: str, checkpoint: Load, tmp_path: Path
) -> None:
    model, plan = uneven_plan(checkpoint("delta_net"))
    small = st.prune(model, plan, tmp_path / "small", uneven=True)
    tiny.edit_json(small.path / "config.json", **{LAYER_WIDTHS_FIELD: widths})
    with pytest.raises(st.StatetrimError, match=message):
        st.open(small.path)


@pytest.mark.parametrize(("widths", "message"), load_cases("widths-by-layer"))
def test_widths_that_cannot_be(widths: str, message: str, checkpoint: Load) -> None:
    with pytest.raises(st.StatetrimError, match=message):
        st.select(checkpoint("delta_net"), "rand", to=widths)


def test_widths_that_are_all_alike_are_an_ordinary_cut(checkpoint: Load, tmp_path: Path) -> None:
    model = st.open(checkpoint("delta_net"))
    plan = st.select(model, "rand", to="others=6x4")
    small = st.prune(model, plan, tmp_path / "small")
    assert LAYER_WIDTHS_FIELD not in small.config and not small.geometry.widths


def test_the_other_stages_take_it(checkpoint: Load, text: Path, tmp_path: Path) -> None:
    """Refit, analyze, prune again, recover, evaluate, benchmark and report the cut."""
    model, plan = uneven_plan(checkpoint("qwen3_5_text"))
    small = st.prune(model, plan, tmp_path / "small", uneven=True)
    sums = st.calibrate(small, text, original=model, tokens=2048, length=64)
    refitted = st.refit(small, sums, out=tmp_path / "refit")
    assert refitted.geometry == small.geometry
    analysis = st.analyze(refitted, text, tokens=512, length=64, burn_in=16, baseline=model)
    analysis.save(tmp_path / "analysis.json")
    again = st.Analysis.load(tmp_path / "analysis.json")
    assert again.geometry == small.geometry
    assert torch.equal(again.utilization.nan_to_num(), analysis.utilization.nan_to_num())
    even = st.select(refitted, "l1,readout_l1", "4x4")
    assert not st.prune(refitted, even, tmp_path / "even").geometry.widths
    sizes = {"tokens": 1024, "length": 64, "skip": 2048}
    repaired = st.recover(refitted, teacher=model, text=text, out=tmp_path / "repaired", **sizes)
    assert repaired.geometry == small.geometry
    scores = st.evaluate(
        repaired, baseline=model, tasks=["mqar"], limit=2, out=tmp_path / "scores.json"
    )
    assert len(scores.models) == 2
    st.benchmark(
        repaired, baseline=model, batches=[1], lengths=[8], rounds=1, out=tmp_path / "timings.json"
    )
    files = [tmp_path / name for name in ("analysis.json", "scores.json", "timings.json")]
    page = st.report(repaired, files, out=tmp_path / "report", baseline=model)
    assert small.geometry.shape in page.read_text()
