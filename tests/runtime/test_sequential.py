"""A layerwise run has the results of the whole model, and reads every weight once."""

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.forker import run_in_child
from helpers.reads import record_tensor_reads
from helpers.sums import assert_statistics_close
from helpers.tiny import Load
from statetrim.artifacts.statistics import Statistics
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.runtime.placement import Placement
from statetrim.runtime.sequential import LayerWalk, from_final_hidden
from statetrim.storage.text import Sequences

FROM_DISK = Placement(layerwise=True)
METHODS = ["drrqr", "s_wanda", "readout_greedy"]
QUIET: Any = {"batch_size": 4, "progress": False}

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its slow paths


def data(rows: int = 12, length: int = 20) -> Sequences:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, tiny.VOCABULARY, (rows, length), generator=generator).int()
    return Sequences(ids, {"digest": "walk"})


def in_memory(live: LiveModel) -> set[str]:
    return {name for name, value in live.module.named_parameters() if not value.is_meta}


@tiny.every_type(*tiny.ONE_OF_EACH_MIXER)
@torch.no_grad()
def test_logits_are_those_of_the_whole_model(model_type: str, checkpoint: Load) -> None:
    """Bit for bit, with layers loaded on call and after a walk, for batches of two shapes."""
    whole, streamed, walked = (
        load_live(checkpoint(model_type), placement) for placement in (None, FROM_DISK, FROM_DISK)
    )
    assert not in_memory(walked)
    batches = [whole.random_ids(2, 24), whole.random_ids(3, 17)]
    walk = LayerWalk(walked, batches)
    layer_names = {f"layers.{number}." for number in range(len(walked.decoder_layers))}
    for number in walk.layers():
        for step in range(len(batches)):
            walk.run_batch(step)
        loaded_layers = [n for n in layer_names if any(n in name for name in in_memory(walked))]
        assert f"layers.{number}." in loaded_layers
        assert len(loaded_layers) == 1 or model_type == "zamba2", (
            "its layers share a block, which stays"
        )
    for step, ids in enumerate(batches):
        expected = whole.logits(ids)
        assert torch.equal(streamed.logits(ids), expected)
        with from_final_hidden(walked, walk.hidden_store, step):
            assert torch.equal(walked.logits(ids), expected)


@tiny.every_type(*tiny.ONE_OF_EACH_MIXER)
def test_sums_are_those_of_the_whole_model_and_weights_are_read_once(
    model_type: str, checkpoint: Load
) -> None:
    model = st.open(checkpoint(model_type))
    model.digest  # noqa: B018  (reads all files, to know the model again)
    with record_tensor_reads(model) as read:
        statistics = st.calibrate(model, data(), methods=METHODS, layerwise=True, **QUIET)
    assert_statistics_close(
        st.calibrate(model, data(), methods=METHODS, **QUIET), statistics, 1e-12
    )
    assert len(set(read)) == len(read), "no tensor was read twice"
    last = max(model.geometry.layers)
    live = load_live(model, FROM_DISK)
    assert live.weights is not None
    layer_tensors = set[str]()
    for layer in live.decoder_layers[: last + 1]:
        for name in live.weights._names_in(layer):
            layer_tensors.update(
                live.weights._sources.get(live.weights._stored_name(name) or "", ())
            )
    assert layer_tensors <= set(read)
    others = set(read) - layer_tensors
    assert all("embed" in name or "ple" in name for name in others), others


def test_a_killed_walk_resumes_with_its_layer(checkpoint: Load, tmp_path: Path) -> None:
    """Killed by SIGKILL in the first layer, and twice in the third."""
    model = st.open(checkpoint("qwen3_next"))
    arguments: Any = {"methods": METHODS, "layerwise": True, **QUIET}
    expected = st.calibrate(model, data(), **arguments)
    out, layer_file = tmp_path / "out" / "s.safetensors", tmp_path / "layer"
    out.parent.mkdir()

    def work() -> None:
        st.calibrate(model, data(), out=out, **arguments)

    for passes, first_layer in ((2, 0), (7, 0), (2, 2)):
        assert first_layer_of_killed_walk(work, passes, layer_file) == first_layer
        assert not out.exists()
    work()
    assert_statistics_close(expected, Statistics.load(out), 0.0)
    assert [path.name for path in out.parent.iterdir()] == ["s.safetensors"]


def first_layer_of_killed_walk(work: Callable[[], object], passes: int, layer_file: Path) -> int:
    """Run `work` in a process that is killed after this many passes of a batch through a layer;
    returns the first layer that it ran."""
    real, count = LayerWalk.run_batch, 0

    def counted(self: LayerWalk, step: int) -> None:
        nonlocal count
        if not count:
            layer_file.write_text(str(self.layer))
        if count == passes:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        real(self, step)

    def killed() -> None:
        LayerWalk.run_batch = counted  # type: ignore[method-assign]
        work()

    assert run_in_child(killed) == -signal.SIGKILL
    return int(layer_file.read_text())


def test_no_weight_is_copied_to_a_temporary_folder(
    checkpoint: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither during a layerwise run nor afterwards, for two runs one after the other."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real, seen = LayerWalk.run_batch, list[Path]()

    def watched(self: LayerWalk, step: int) -> None:
        real(self, step)
        seen.extend(tmp_path.iterdir())

    monkeypatch.setattr(LayerWalk, "run_batch", watched)
    model = st.open(checkpoint("qwen3_next"))
    for _ in range(2):
        st.calibrate(model, data(), methods=METHODS, layerwise=True, **QUIET)
    assert not seen and not [*tmp_path.iterdir()]
