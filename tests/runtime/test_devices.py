"""Every command on simulated GPUs: one GPU, weights on disk, and a model spread over two GPUs.

Simulated tensors have no autograd: `grad` and `recover` are in test_gradients_elsewhere.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.pretended_cuda import Cards, DevicesMixed, on_the_host, pretended_cuda
from helpers.sums import assert_statistics_close
from statetrim.artifacts.plan import PLAN_FILE
from statetrim.runtime.loading import load_live
from statetrim.runtime.placement import Placement
from statetrim.storage.text import Sequences
from statetrim.surgery.check import compare_cut

METHODS = ["drrqr", "s_wanda", "readout_greedy"]
ROWS, BATCH, LENGTH = 16, 4, 20
BATCHES = ROWS // BATCH
ROUNDING = 1e-4  # of a model in float32
MODES = ("one card", "layerwise", "two cards")
IN_CI = (("delta_net", "one card"), ("delta_net", "layerwise"), ("qwen3_next", "two cards"))

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")
pytestmark = [pytest.mark.filterwarnings("ignore"), no_gpu]  # transformers warns of slow paths
OTHERS = [case for case in product(tiny.MODEL_TYPES, MODES) if case not in IN_CI]
every_type_and_mode = pytest.mark.parametrize(
    ("model_type", "mode"),
    [*IN_CI, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)],
)


def options(mode: str, model: st.Checkpoint) -> dict[str, Any]:
    size = sum(tensor.nbytes for _, tensor in model.tensors.values())
    memory = {0: int(0.6 * size), 1: 2 * size}
    two_gpus = {"device_map": "auto", "max_memory": memory}
    return {"one card": {}, "layerwise": {"layerwise": True}, "two cards": two_gpus}[mode]


@contextmanager
def cards_for(mode: str) -> Iterator[Cards]:
    """Two simulated GPUs; on exit checks that exactly those of the mode were used."""
    with torch.no_grad(), pretended_cuda(2) as cards:
        yield cards
    expected_devices = {"cuda:0", "cuda:1"} if mode == "two cards" else {"cuda:0"}
    assert cards.used - {"meta"} == expected_devices


def data() -> Sequences:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, tiny.VOCABULARY, (ROWS, LENGTH), generator=generator).int()
    return Sequences(ids, {"digest": "pretended"})


Cut = tuple[st.Checkpoint, st.Plan, st.Checkpoint]
"""A model, a random plan for half of its keys, and its cut."""


@pytest.fixture
def cut(model_type: str, pair: Any) -> Cut:
    model, small = pair(model_type, "50%x100%", "rand")
    return model, st.Plan.load(small.path / PLAN_FILE), small


def baseline_copies(model: st.Checkpoint, cards: Cards, placement: dict[str, Any]) -> int:
    """Copies from GPU to host by loading, which compares weights with files, and by the bare model
    on all batches."""
    before = cards.copies
    live = load_live(model, Placement(**placement))
    for batch in data().batches(BATCH):
        live.hidden_states(batch)
    return cards.copies - before


def test_the_pretended_card_refuses_what_a_real_one_refuses() -> None:
    with pretended_cuda() as cards:
        a, b, on_host = torch.ones(3, device="cuda"), torch.ones(3, device="cuda:1"), torch.ones(3)
        mixed = (lambda: a + b, lambda: a * on_host, lambda: on_host[a.long()])
        for mix in (*mixed, lambda: a[b.long()]):
            with pytest.raises(DevicesMixed):
                mix()
        with pytest.raises(TypeError):
            a.numpy()
        assert cards.copies == 0
        assert float((a + a.to("cuda:0")).sum()) == 6 and (a + on_host.cuda()).device.index == 0
        assert cards.copies == 1
        assert torch.equal(b.cpu(), on_host) and torch.equal(on_the_host(b), on_host)
        assert cards.copies == 2 and cards.bytes == 4 + 12
    assert not torch.cuda.is_available()


@every_type_and_mode
def test_calibration_mixes_no_devices_and_waits_once_for_a_layer(
    model_type: str, mode: str, cut: Cut
) -> None:
    """Spread or layerwise, the sums equal those of one GPU; on the CPU some kernels differ."""
    model, _, _ = cut
    arguments: Any = {"methods": METHODS, "batch_size": BATCH, "progress": False}
    placement = options(mode, model)
    tolerance = ROUNDING if mode == "one card" else 1e-12
    with nullcontext() if mode == "one card" else cards_for("one card"):
        expected = st.calibrate(model, data(), **arguments)
    with cards_for(mode) as cards:
        own = baseline_copies(model, cards, placement)
        before = cards.copies
        statistics = st.calibrate(model, data(), **arguments, **placement)
        copies = cards.copies - before
    assert_statistics_close(expected, statistics, tolerance)
    layers, depth = len(model.geometry.layers), max(model.geometry.layers) + 1
    if mode == "layerwise":  # a forward pass begins for every layer, whose output goes to the host
        assert copies <= depth * (own + BATCHES) + layers
    else:
        assert copies <= own + layers


@every_type_and_mode
@pytest.mark.usefixtures("own_tokenizer")
def test_refit_sums_check_and_analysis(model_type: str, mode: str, cut: Cut, text: Path) -> None:
    model, plan, small = cut
    placement, quiet = options(mode, model), {"batch_size": BATCH, "progress": False}
    spans: Any = {"tokens": 256, "length": 128, "burn_in": 32}
    pairs = st.calibrate(small, data(), original=model, **quiet)
    analysis = st.analyze(model, text, **spans, **quiet)
    with cards_for(mode) as cards:
        whole = (model, small) if mode != "layerwise" else ()
        own = sum(baseline_copies(checkpoint, cards, placement) for checkpoint in whole)
        before = cards.copies
        actual = st.calibrate(small, data(), original=model, **quiet, **placement)
        assert_statistics_close(pairs, actual, ROUNDING)
        if whole:
            assert cards.copies - before - own <= len(model.geometry.layers)
        cut_check = compare_cut(model, plan, small, placement=Placement(**placement))
        assert cut_check.sliced_against_masked < 1e-4
        analysis_on_cards = st.analyze(model, text, **spans, **quiet, **placement)
    for layer, expected in analysis.layers.items():
        for field in ("effective_rank", "spectrum", "key_condition"):
            on_cards = getattr(analysis_on_cards.layers[layer], field)
            assert torch.allclose(on_cards, getattr(expected, field), rtol=ROUNDING)


@every_type_and_mode
@pytest.mark.usefixtures("own_tokenizer")
def test_evaluation(model_type: str, mode: str, cut: Cut, text: Path) -> None:
    model, _, small = cut
    arguments: Any = {"tasks": ["text", "mqar"], "text": text, "limit": 3, "batch_size": 4}
    placement = options(mode, model)
    on_cpu = st.evaluate([small], baseline=model, progress=False, **arguments)
    with cards_for(mode):
        on_cards = st.evaluate([small], baseline=model, progress=False, **arguments, **placement)
    for expected, actual in zip(on_cpu.scores, on_cards.scores, strict=True):
        assert (expected.model, expected.metric) == (actual.model, actual.metric)
        assert actual.samples == pytest.approx(expected.samples, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("mode", ["one card", "two cards"])
@tiny.every_type("delta_net")
def test_benchmark(model_type: str, mode: str, cut: Cut) -> None:
    model, _, small = cut
    with cards_for(mode):
        sizes = {"batches": [1], "lengths": [16], "rounds": 1, "progress": False}
        timings = st.benchmark([small], baseline=model, **sizes, **options(mode, model))
    assert timings.lineage["device"] == "pretended" and timings.lineage["clock"] == "CUDA events"
