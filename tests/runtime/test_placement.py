"""Device options: refusals, memory, and the GPU and tasks of each torchrun process."""

import gc
import json
import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.forker import run_as_ranks
from helpers.pretended_cuda import pretended_cuda
from helpers.refusal import run
from helpers.tiny import Load
from statetrim.artifacts.scores import Scores
from statetrim.evaluation.options import EvaluateOptions
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.runtime.placement import Placement, default_device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")


@pytest.mark.parametrize(("options", "message"), load_cases("placement"))
def test_what_cannot_be_is_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(st.StatetrimError, match=message):
        Placement(**options)


def test_devices_that_are_not_here_are_one_sentence(checkpoint: Load) -> None:
    for options, message in (
        ({"device": "cuda"}, "cuda was asked for, and this machine has no GPU"),
        ({"device": "tpu9000"}, "--device is cpu, cuda or cuda:1"),
        ({"device_map": "auto"}, "here is none"),
    ):
        with pytest.raises(st.StatetrimError, match=message):
            st.load(checkpoint("delta_net"), **options)  # type: ignore[arg-type]
        with pytest.raises(st.StatetrimError, match=message):
            Placement(**options).free_memory  # type: ignore[arg-type]  # noqa: B018
    with pretended_cuda(2), pytest.raises(st.StatetrimError, match="this machine has 2 GPUs"):
        Placement(device="cuda:2").input_device  # noqa: B018


def test_memory_is_that_of_the_cards_that_are_used() -> None:
    with pretended_cuda(4, free=10 * 2**30):
        assert Placement().free_memory == Placement(device="cuda:3").free_memory == 10 * 2**30
        assert Placement(device_map="auto").free_memory == 4 * (9 * 2**30)
        two = Placement(device_map="auto", max_memory="0=2GiB, 1=1.5 GiB")
        assert two.gpu_memory == {0: 2 * 2**30, 1: 3 * 2**29} and two.free_memory == 7 * 2**29
        assert Placement(device="cpu").free_memory != 10 * 2**30
        served = EvaluateOptions(baseline="M", engine="vllm", device_map="auto")
        assert served.vllm_options == {"tensor_parallel_size": 4}
        engine_options = {"tensor_parallel_size": 2}
        assert replace(served, engine_options=engine_options).vllm_options == engine_options


@torch.no_grad()
def test_every_process_of_a_launch_has_its_own_card(
    checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_device() == torch.device("cpu")
    for rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with pretended_cuda(2) as cards:
            live = load_live(checkpoint("delta_net"))
            live.hidden_states(live.random_ids(1, 8))
        assert live.device == torch.device("cuda", rank) and cards.used == {f"cuda:{rank}"}


@pytest.mark.parametrize("layerwise", [False, True])
def test_an_evaluation_has_one_model_in_memory(
    layerwise: bool, pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a model is loaded, no other one has decoder layers in memory; head and norm may be."""
    model, small = pair("delta_net")
    text = tiny.write_text(tmp_path / "words.jsonl", 2000)
    loaded: list[weakref.ref[LiveModel]] = []

    def load(*arguments: Any) -> LiveModel:
        gc.collect()
        others = [live for live in (reference() for reference in loaded) if live is not None]
        weights = [w for live in others for w in live.decoder_layers.parameters()]
        assert all(weight.is_meta for weight in weights)
        live = load_live(*arguments)
        loaded.append(weakref.ref(live))
        return live

    monkeypatch.setattr("statetrim.evaluation.runner.load_live", load)
    options: Any = {"tasks": ["text", "mqar"], "text": text, "limit": 2, "layerwise": layerwise}
    st.evaluate([small], baseline=model, progress=False, **options)
    assert len(loaded) >= 2


def test_two_processes_of_a_launch_share_the_tasks(pair: Any, tmp_path: Path) -> None:
    model, small = pair("delta_net")
    text, out = tiny.write_text(tmp_path / "words.jsonl", 2000), tmp_path / "scores.json"
    arguments: Any = {"tasks": ["text", "mqar"], "text": text, "limit": 2}
    expected = st.evaluate([small], baseline=model, progress=False, **arguments)
    command = [
        "evaluate", small.path, "--baseline", model.path, "--tasks", "text,mqar", "--text", text,
        "--limit", "2", "--json", "-o", out,
    ]  # fmt: skip

    def work() -> None:
        code, err, printed = run(list(map(str, command)))
        assert code is None, err
        (tmp_path / f"printed-{os.environ['RANK']}").write_text(printed)

    run_as_ranks(work)
    assert Scores.load(out).scores == expected.scores
    assert json.loads((tmp_path / "printed-0").read_text())
    assert not (tmp_path / "printed-1").read_text(), "only rank 0 prints"
