"""Quantised checkpoints are cut, refitted and run; the same plan cuts the quantised sibling."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import statetrim as st
from helpers import tiny
from helpers.quantized import FORMATS, Format, quantize_checkpoint, write_shards
from helpers.sums import assert_statistics_close, layer_errors
from statetrim.runtime.loading import load

MODEL_TYPE = "qwen3_5_text"
KEYS, VALUES = 8, 4
TOKENS = {"tokens": 640, "length": 20, "batch_size": 4, "recall": 0.0}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(MODEL_TYPE, tmp_path_factory.mktemp("models") / "original")


IN_CI = ("fine-grained fp8", "w4a16", "nvfp4", "modelopt fp8")
"""A scale for a block, for a group, two scales, and one for a tensor; the others are slow tests."""
EVERY_FORMAT = [
    pytest.param(name, marks=() if name in IN_CI else pytest.mark.slow) for name in FORMATS
]


@pytest.fixture(scope="module", params=EVERY_FORMAT)
def quantized(
    request: pytest.FixtureRequest, original: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    directory = tmp_path_factory.mktemp("quantized") / "model"
    return request.param, quantize_checkpoint(original, directory, FORMATS[request.param])


def plan_for(model: Path, *, values: bool = False) -> st.Plan:
    kept_values = VALUES if values else "100%"
    return st.select(model, "l1,readout_l1", f"{KEYS}x{kept_values}")


def dequantized(model: Path, out: Path) -> Path:
    """The checkpoint with the values that its quantised weights stand for, in float32."""
    opened = st.open(model)
    out.mkdir()
    tensors = {name: opened.tensor(name).contiguous() for name in opened.logical_tensors}
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).write_bytes((model / name).read_bytes())
    return out


def logits(model: Path) -> Tensor:
    ids = torch.arange(40).reshape(2, 20) % tiny.VOCABULARY
    with torch.no_grad():
        result: Tensor = load(model, dtype="float32")(input_ids=ids).logits
    return result


def test_keys_are_removed_as_from_the_dequantised_model(
    quantized: tuple[str, Path], original: Path, tmp_path: Path
) -> None:
    """Exactly, where a scale belongs to a row or a tensor; else within the format's own error."""
    name, model = quantized
    cut = st.prune(model, plan_for(model), tmp_path / "cut")
    plain = dequantized(model, tmp_path / "plain")
    expected = logits(st.prune(plain, plan_for(plain), tmp_path / "expected").path)
    requantized = json.loads((cut.path / "statetrim" / "prune.json").read_text()).get("requantized")
    if requantized:
        assert "block" in name or "fine" in name
        assert all(0 < error < 0.05 for error in requantized.values())
    difference = float((logits(cut.path) - expected).norm())
    if requantized:
        assert difference < float((logits(model) - logits(original)).norm())
    else:
        assert difference < 1e-5 * float(expected.norm())


def test_every_untouched_tensor_is_copied(quantized: tuple[str, Path], tmp_path: Path) -> None:
    _, model = quantized
    cut = st.prune(model, plan_for(model), tmp_path / "cut")
    before, after = tiny.tensors(model), tiny.tensors(cut.path)
    mixers = [name for name in before if "linear_attn" in name]
    assert before.keys() == after.keys() and mixers
    for name in before.keys() - set(mixers):
        assert torch.equal(*(x[name].flatten().view(torch.uint8) for x in (before, after)))
    config = json.loads((cut.path / "config.json").read_text())
    original_config = json.loads((model / "config.json").read_text())
    assert config["quantization_config"] == original_config["quantization_config"]


def test_values_and_a_refit(quantized: tuple[str, Path], tmp_path: Path) -> None:
    """The norm is folded into a quantised projection, and the refit is quantised again."""
    _, model = quantized
    text = tiny.write_text(tmp_path / "text.txt", 2000)
    cut = st.prune(model, plan_for(model, values=True), tmp_path / "cut")
    statistics = st.calibrate(cut, text, original=model, **TOKENS)
    refitted = st.refit(cut, statistics, out=tmp_path / "refitted")
    record = json.loads((refitted.path / "statetrim" / "refit.json").read_text())
    for errors in record["layers"].values():
        assert errors["after"] < errors["before"]
    written = layer_errors(refitted, statistics)
    assert written == {int(layer): errors["after"] for layer, errors in record["layers"].items()}


def changed_copy(original: Path, directory: Path) -> Path:
    """The model with another convolution in its first layer."""
    other = Path(shutil.copytree(original, directory / "other"))
    tiny.rewrite(other, "model.layers.0.linear_attn.conv1d.weight", lambda x: x + 1)
    return other


def test_the_plan_of_the_original_cuts_its_sibling_and_no_other_model(
    quantized: tuple[str, Path], original: Path, tmp_path: Path
) -> None:
    _, model = quantized
    plan = plan_for(original)
    cut = st.prune(model, plan, tmp_path / "cut")
    plain = st.prune(original, plan, tmp_path / "plain")
    assert cut.geometry == plain.geometry
    assert f"| {plain.parameters:,} |" in (cut.path / "README.md").read_text()
    other = changed_copy(original, tmp_path)
    with pytest.raises(st.StatetrimError, match=r"another model: 0\.conv1d\.weight"):
        st.prune(model, plan_for(other), tmp_path / "other cut")


def test_a_tool_may_store_the_sibling_in_bfloat16(original: Path, tmp_path: Path) -> None:
    """As those do that load a model in one dtype; the original may have tensors in float32."""
    rounded = tiny.to_bfloat16(original, tmp_path / "rounded")
    model = quantize_checkpoint(rounded, tmp_path / "model", FORMATS["modelopt fp8 by row"])
    cut = st.prune(model, plan_for(original), tmp_path / "cut")
    assert cut.geometry.width("key") == KEYS


def test_statistics_are_those_of_the_dequantised_model(
    quantized: tuple[str, Path], tmp_path: Path
) -> None:
    _, model = quantized
    text = tiny.write_text(tmp_path / "text.txt", 2000)
    plain = dequantized(model, tmp_path / "plain")
    expected = st.calibrate(plain, text, dtype="float32", **TOKENS)
    for layerwise in (False, True):
        actual = st.calibrate(model, text, dtype="float32", layerwise=layerwise, **TOKENS)
        assert_statistics_close(actual, expected, 1e-6)


def test_only_other_layers_are_quantised(original: Path, tmp_path: Path) -> None:
    """As recipes that ignore linear attention do: the cut is that of the unquantised model."""
    form = FORMATS["nvfp4"]
    model = quantize_checkpoint(original, tmp_path / "m", form, lambda name: "mlp" in name)
    cut = st.prune(model, plan_for(original), tmp_path / "cut")
    plain = st.prune(original, plan_for(original), tmp_path / "plain")
    mixers = [name for name in plain.tensors if "linear_attn" in name]
    for name in mixers:
        assert torch.equal(cut.tensor(name), plain.tensor(name))


@pytest.mark.parametrize("leaf", ["qweight", "weight_g_idx", "absmax", "_weight_qdata"])
def test_other_packed_weights_are_refused(leaf: str, original: Path, tmp_path: Path) -> None:
    """GPTQ, AWQ, asymmetric groups, bitsandbytes, torchao."""
    model = quantize_checkpoint(original, tmp_path / "m", FORMATS["fp8 by row"])
    tensors = tiny.tensors(model)
    name = next(n for n in tensors if n.endswith("out_proj.weight"))
    tensors[name.replace("weight", leaf)] = torch.zeros(4, 4, dtype=torch.int32)
    write_shards(tensors, model)
    with pytest.raises(st.StatetrimError, match="quantised"):
        st.select(model, "l1", f"{KEYS}x100%")


def test_inspect_says_how_weights_are_stored(original: Path, tmp_path: Path) -> None:
    known = quantize_checkpoint(original, tmp_path / "known", FORMATS["fp8 by row"])
    expected = "FP8, a scale for a row; a cut touches 6"
    assert st.inspect(known).quantized.endswith(expected)
    assert st.inspect(original).quantized == ""

    def pack(weight: Tensor) -> dict[str, Tensor]:
        return {"qweight": torch.zeros(4, 4, dtype=torch.int32)}

    form = Format(pack, {"quant_method": "gptq"}, exact=False)
    model = quantize_checkpoint(original, tmp_path / "m", form)
    assert st.inspect(model).quantized == "by gptq, in a way that is not read"
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    assert st.inspect(tmp_path / "config.json").quantized == "by gptq, only the config was read"
    with pytest.raises(st.StatetrimError, match="quantised by gptq"):
        st.load(model)


def test_the_report_lists_what_was_quantised_again(original: Path, tmp_path: Path) -> None:
    """A sibling's plan is no mismatch; that of another model is."""
    model = quantize_checkpoint(original, tmp_path / "m", FORMATS["fine-grained fp8"])
    cut = st.prune(model, plan_for(original), tmp_path / "cut")
    st.report(cut, out=tmp_path / "report", baseline=model)
    page = (tmp_path / "report" / "report.html").read_text()
    errors = json.loads((cut.path / "statetrim" / "prune.json").read_text())["requantized"]
    assert errors and f"{len(errors)} weights were quantised again for the cut" in page
    assert all(name in page and f"{100 * error:.3g} %" in page for name, error in errors.items())
    assert "FP8, a scale for 16 x 16" in page
    assert "the plan was" not in page
    other = quantize_checkpoint(changed_copy(original, tmp_path), tmp_path / "n", FORMATS["w4a16"])
    st.report(cut, out=tmp_path / "other report", baseline=other)
    assert "the plan was not made for n" in (tmp_path / "other report/report.html").read_text()


def test_a_cut_with_more_error_than_its_format_costs_is_not_published(
    original: Path, tmp_path: Path
) -> None:
    """Scales in float16 do not hold a projection that is multiplied by a tiny norm."""

    def quantize(weight: Tensor) -> dict[str, Tensor]:
        stored = FORMATS["int8 by row"].quantize(weight)
        return stored | {"weight_scale": stored["weight_scale"].half()}

    form = replace(FORMATS["int8 by row"], quantize=quantize)
    model = quantize_checkpoint(original, tmp_path / "m", form)
    for name in tiny.tensors(model):
        if name.endswith("linear_attn.norm.weight"):
            tiny.rewrite(model, name, lambda value: value * 1e-6)
    message = r"out_proj\.weight.*more than INT8, a scale for a row"
    with pytest.raises(st.StatetrimError, match=message):
        st.prune(model, plan_for(model, values=True), tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


def test_weights_of_a_known_and_of_an_unknown_scheme_are_not_run(
    original: Path, tmp_path: Path
) -> None:
    """Codes with zero points would be taken for weights."""
    model = quantize_checkpoint(original, tmp_path / "m", FORMATS["int8 by row"])
    tensors = tiny.tensors(model)
    name = next(n for n in tensors if n.endswith("down_proj.weight"))
    tensors[f"{name}_zero_point"] = torch.ones(len(tensors[name]), 1, dtype=torch.int8)
    write_shards(tensors, model)
    with pytest.raises(st.StatetrimError, match="quantised by compressed-tensors"):
        st.load(model)


def test_a_recovery_is_refused_before_it_trains(original: Path, tmp_path: Path) -> None:
    model = quantize_checkpoint(original, tmp_path / "m", FORMATS["fp8 by row"])
    cut = st.prune(model, plan_for(model), tmp_path / "cut")
    text = tiny.write_text(tmp_path / "text.txt", 2000)
    with pytest.raises(st.StatetrimError, match="quantised"):
        st.recover(cut, text=text, teacher=model, out=tmp_path / "recovered", tokens=100)
