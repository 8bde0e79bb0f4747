"""A prompt's cache is saved and restored, for every kind of model; other files are refused."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statetrim as st
from helpers import tiny
from helpers.prompt_mutants import SoundPrompt, prompt_mutants
from statetrim.errors import StatetrimError
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.snapshots.metric import state_metrics
from statetrim.snapshots.prompt import slots
from statetrim.snapshots.stream import StateFile, checksum
from statetrim.storage.safetensors_file import read_shard

IDS = torch.randint(2, 60, (2, 20), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> LiveModel:
    return load_live(tiny.build("qwen3_5_text", tmp_path_factory.mktemp("hybrid") / "model"))


@pytest.fixture
def cache(hybrid: LiveModel) -> Any:
    with torch.inference_mode():
        return hybrid.forward_with_cache(IDS)[1]


@pytest.fixture
def saved(hybrid: LiveModel, cache: Any, tmp_path: Path) -> Path:
    st.save_prompt(cache, tmp_path / "prompt", model=hybrid.checkpoint)
    return tmp_path / "prompt"


@tiny.every_type(*tiny.ONE_OF_EACH_MIXER, "bamba", "minicpmv4_6")
def test_reading_on_is_as_without_a_copy(model_type: str, tmp_path: Path) -> None:
    """With a tolerance that stores all states exactly: against the cache itself, and against the
    model's forward pass, except for Bamba, whose stock decoding differs from it."""
    live = load_live(tiny.build(model_type, tmp_path / "model"))
    with torch.inference_mode():
        expected = live.logits(IDS)[:, -1:]
        _, cache = live.forward_with_cache(IDS[:, :14])
        st.save_prompt(cache, tmp_path / "prompt", model=live.checkpoint, tolerance=1e-6)
        restored = st.load_prompt(live.module, tmp_path / "prompt", model=live.checkpoint)
        for token in IDS[:, 14:].split(1, dim=1):
            logits, restored = live.forward_with_cache(token, restored)
            without_copy, cache = live.forward_with_cache(token, cache)
    torch.testing.assert_close(logits, without_copy, rtol=1e-4, atol=1e-4)
    if model_type != "bamba":
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def test_coarse_states_change_what_is_read(hybrid: LiveModel, cache: Any, saved: Path) -> None:
    """Otherwise the test above would prove nothing: what was coded is what is read."""
    with torch.inference_mode():
        restored = st.load_prompt(hybrid.module, saved, model=hybrid.checkpoint)
        for before, after in zip(slots(cache), slots(restored), strict=True):
            if before.is_state:
                error = (after.value - before.value).norm() / before.value.norm()
                assert 0 < float(error) <= 0.05
            elif before.attribute in ("keys", "values"):
                assert torch.equal(before.value, after.value)


def test_the_metric_comes_from_calibrate(hybrid: LiveModel, cache: Any, tmp_path: Path) -> None:
    text = tiny.write_text(tmp_path / "text.jsonl", 3000)
    metric, other = (
        st.calibrate(hybrid.checkpoint, text, methods=[use], tokens=512, length=32, progress=False)
        for use in ("product", "readout_greedy")
    )
    with pytest.raises(StatetrimError, match="run: statetrim calibrate"):
        st.save_prompt(cache, tmp_path / "out", model=hybrid.checkpoint, statistics=other)
    for name, used in (("with", metric), ("without", None)):
        st.save_prompt(cache, tmp_path / name, model=hybrid.checkpoint, statistics=used)
    weighted, plain = (StateFile.load(tmp_path / name) for name in ("with", "without"))
    assert weighted.header.metric and plain.header.metric is None
    assert weighted.coded.keys() == plain.coded.keys()
    assert 0 < weighted.header.worst_error <= 0.05


@pytest.mark.parametrize(
    ("model_type", "names"),
    [("qwen3_5_text", ["query_unit_gram", "key_unit_gram"]), ("mamba2", ["query_unit_gram"])],
)
def test_keys_count_where_they_overwrite(model_type: str, names: list[str], tmp_path: Path) -> None:
    model = st.open(tiny.build(model_type, tmp_path / "model"))
    text, heads = tiny.write_text(tmp_path / "text.jsonl", 3000), model.geometry
    statistics = st.calibrate(
        model, text, methods=["product"], tokens=512, length=32, progress=False
    )
    metrics = state_metrics(statistics, model)
    assert metrics is not None and heads.num_v_heads > heads.num_k_heads
    for layer, metric in metrics.items():
        for head, weight in enumerate(metric.double()):
            expected = 0.01 * torch.eye(heads.head_k_dim, dtype=torch.float64)
            for name in names:
                shared = head * heads.num_k_heads // heads.num_v_heads
                gram = sum(x[layer][name] for x in statistics.sources.values())[shared]
                expected += gram / gram.diag().mean() / len(names)
            torch.testing.assert_close(weight.T @ weight, expected, rtol=1e-4, atol=1e-5)


def test_a_file_of_another_model_is_refused(saved: Path, tmp_path: Path) -> None:
    other = load_live(tiny.build("delta_net", tmp_path / "other"))
    with pytest.raises(StatetrimError, match="another model"):
        st.load_prompt(other.module, saved, model=other.checkpoint)


def test_an_existing_file_is_kept(hybrid: LiveModel, cache: Any, saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(StatetrimError, match="not overwritten"):
        st.save_prompt(cache, saved, model=hybrid.checkpoint)
    assert saved.read_bytes() == before


def test_an_empty_cache_is_refused(hybrid: LiveModel, tmp_path: Path) -> None:
    empty: Any = type("Empty", (), {"layers": []})()
    with pytest.raises(StatetrimError, match="no recurrent state"):
        st.save_prompt(empty, tmp_path / "out", model=hybrid.checkpoint)


def change_all_tokens(tensors: dict[str, Tensor], tokens: int) -> None:
    for name in ("1.keys", "1.values", "3.keys", "3.values"):
        tensors[name] = tensors[name][:, :, :tokens].contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, h: x["1.keys"].fill_(math.nan), "1.keys' holds no numbers, or some above 1e"),
        (lambda x, h: x["3.values"].view(-1)[7:8].fill_(1e30), "some above 1e"),
        (lambda x, h: x.update({"1.keys": x["1.keys"].repeat(7, 1, 1, 1)}), "'1.keys' in the"),
        (lambda x, h: x.update({"1.keys": x["1.keys"].repeat(1, 2, 1, 1)}), "'1.keys' in the"),
        (lambda x, h: x.update({"1.keys": x["1.keys"].half()}), "'1.keys' in the file"),
        (lambda x, h: x.update({"1.keys": x["1.keys"][:, :, :5].clone()}), "numbers of tokens"),
        (lambda x, h: change_all_tokens(x, 0), "numbers of tokens, or none"),
        (lambda x, h: change_all_tokens(x, 7), ""),
        (lambda x, h: h["counters"].update({"0.conv_kernel_size.0": 3}), "conv_kernel_size.0' in"),
        (lambda x, h: h.update(batch=4096), "'0.conv_states.0' in the file does not fit"),
        (lambda x, h: h.update(batch=1), "'0.conv_states.0' in the file does not fit"),
        (lambda x, h: h.update(worst_error=0.5), "worst_error"),
        (lambda x, h: h.update(tolerance=5.0), "worst_error"),
        (lambda x, h: h["shapes"].update({"0.recurrent_states.0": [2**15, 128, 128]}), "zero; no"),
    ],
)
def test_a_file_that_is_no_prompt_is_refused(
    hybrid: LiveModel,
    saved: Path,
    change: Callable[[dict[str, Tensor], dict[str, Any]], object],
    message: str,
) -> None:
    """For what it is: equal lengths in all layers are loaded."""
    tensors, header = load_file(saved), json.loads(read_shard(saved).metadata["statetrim"])
    change(tensors, header)
    header["checksum"] = checksum(tensors)
    save_file(tensors, saved, {"statetrim": json.dumps(header)})
    with pytest.raises(StatetrimError, match=message) if message else nullcontext():
        st.load_prompt(hybrid.module, saved, model=hybrid.checkpoint)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e13])
def test_a_cache_that_could_not_be_loaded_is_not_saved(
    hybrid: LiveModel, cache: Any, tmp_path: Path, value: float
) -> None:
    cache.layers[1].keys = torch.full_like(cache.layers[1].keys, value)
    with pytest.raises(StatetrimError, match=r"'1.keys' holds no numbers, or some above"):
        st.save_prompt(cache, tmp_path / "out", model=hybrid.checkpoint)
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_refused_or_another_prompt(hybrid: LiveModel, tmp_path: Path) -> None:
    """A sample of what `just prompt-mutants` makes."""
    sound = SoundPrompt.save(hybrid, tmp_path / "prompt")
    problems: Iterator[tuple[int, str | None]] = prompt_mutants(sound, 150, 3)
    wrong = {number: text for number, text in problems if text}
    assert not wrong
