"""Tiny models with the tensor names and configs of hub models, from inspect to trim."""

import json
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.hub_layouts import CONFIGS, LAYOUTS, PUBLISHED, build

KEEP = 6  # of 16 channels
NAMES = [*LAYOUTS, *PUBLISHED]
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


def tensor_bytes(model: st.Checkpoint, name: str) -> bytes:
    shard, tensor = model.tensors[name]
    with shard.path.open("rb") as file:
        file.seek(tensor.start)
        return file.read(tensor.nbytes)


def check_untouched(before: st.Checkpoint, after: st.Checkpoint) -> set[str]:
    """Check that tensors without channels of the state did not change; return their names."""
    assert list(before.tensors) == list(after.tensors)
    untouched = set(before.tensors) - set(before.channel_rows)
    for name in untouched:
        assert tensor_bytes(before, name) == tensor_bytes(after, name), name
    return untouched


@pytest.mark.parametrize("name", NAMES)
def test_it_is_inspected_selected_and_pruned(name: str, tmp_path: Path) -> None:
    model = st.open(build(name, tmp_path / "model"))
    assert st.inspect(model, to=f"{KEEP}x100%").after is not None
    plan = st.select(model, "l1", f"{KEEP}x100%")
    small = st.prune(model, plan, tmp_path / "small")
    assert small.geometry == model.geometry.resized(KEEP)
    untouched = check_untouched(model, small)
    for part in ("mtp.", ".visual.", ".experts.", "block_sparse_moe"):
        assert {n for n in model.tensors if part in n} <= untouched
    config = json.loads((small.path / "config.json").read_text())
    assert config == model.family.resized(model.config, small.geometry)
    live = st.load(small)  # a missing tensor would be an error
    with torch.no_grad():
        logits = live(input_ids=torch.arange(1, 20).unsqueeze(0)).logits
    assert logits.isfinite().all()


@pytest.mark.slow
@pytest.mark.usefixtures("own_tokenizer")
@pytest.mark.parametrize("name", NAMES)
def test_it_is_calibrated_and_trimmed(name: str, text: Path, tmp_path: Path) -> None:
    model = st.open(build(name, tmp_path / "model"))
    methods = ["drrqr", "energy"]
    statistics = st.calibrate(model, text, tokens=1024, length=128, recall=0.0, methods=methods)
    assert {layer.tokens for layer in statistics.layers.values()} == {1024}
    small = st.trim(
        model, out=tmp_path / "small", text=str(text), to=f"{KEEP}x100%", method="drrqr",
        tokens=1024, limit=2, batch_size=2, progress=False,
    )  # fmt: skip
    assert small.geometry.head_k_dim == KEEP
    check_untouched(model, small)


@pytest.mark.parametrize(
    "hub", sorted(path.stem.removesuffix("_config") for path in CONFIGS.glob("nvidia--Qwen*.json"))
)
def test_a_sibling_with_linear_attention_in_16_bits_is_cut(hub: str, tmp_path: Path) -> None:
    model = build("Qwen3.5-35B-A3B", tmp_path / "model")
    described = json.loads((CONFIGS / f"{hub}_config.json").read_text())["quantization_config"]
    tiny.edit_json(model / "config.json", quantization_config=described)
    cut = st.prune(model, st.select(model, "l1", f"{KEEP}x100%"), tmp_path / "cut")
    assert cut.config["quantization_config"] == described
