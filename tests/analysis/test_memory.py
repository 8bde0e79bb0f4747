"""Layers that forget equal a naive recurrence that is emptied by hand, and attention to oneself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import statetrim as st
from helpers.recurrences import naive_kernel
from helpers.refusal import run
from helpers.tiny import Load
from statetrim.artifacts.memory import Forgetting, Memory
from statetrim.artifacts.samples import Samples
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.forgetting import emptied_states
from statetrim.runtime.kernel_hooks import KernelCall, hook_kernels
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live

LENGTH, ROWS = 72, 2
OPTIONS: dict[str, Any] = {"tokens": 4 * LENGTH, "length": LENGTH, "rows": ROWS, "batch_size": 2}
SAMPLES = Samples([3.0, 3.2], [0.0, 0.0], {16: [0.9, 0.8]}, [3.5, 3.0])


@pytest.mark.parametrize(("every", "numel_at_once"), [(1, 2**26), (5, 2**26), (16, 2**26), (16, 1)])
@pytest.mark.parametrize(
    "model_type",
    ["delta_net", "gated_deltanet", "qwen3_5_text", "mamba2", "kimi_linear", "nemotron_h"],
)
def test_an_emptied_state_is_that_of_the_naive_recurrence(
    checkpoint: Load,
    model_type: str,
    every: int,
    numel_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Token by token from an empty state every `every` tokens, also with one piece at a time."""
    monkeypatch.setattr("statetrim.runtime.forgetting._MAX_STATE_NUMEL", numel_at_once)
    live = load_live(st.open(checkpoint(model_type)))
    ids, calls = live.random_ids(2, 33), list[KernelCall]()
    first, second, *_ = live.checkpoint.geometry.layers
    with emptied_states(live, [first], every), hook_kernels(live, calls.append):
        live.hidden_states(ids)
    emptied, usual = (call for call in calls if call.layer in (first, second))
    expected = naive_kernel(
        emptied.arguments, lambda state, t: state if (t + 1) % every else torch.zeros_like(state)
    )[2]
    assert torch.allclose(emptied.output.double(), expected, atol=1e-5)
    assert not torch.allclose(naive_kernel(emptied.arguments)[2], expected, atol=1e-4)
    assert torch.allclose(usual.output.double(), naive_kernel(usual.arguments)[2], atol=1e-5)


@torch.inference_mode()
def token_nll(live: LiveModel, ids: Tensor) -> Tensor:
    """Negative log-likelihoods [rows, time - 1], from the model's own logits."""
    logits = live.logits(ids)[:, :-1].double()
    return functional.cross_entropy(logits.mT, ids[:, 1:].long(), reduction="none")


def test_layers_of_a_hybrid(checkpoint: Load, text: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))  # linear, softmax, linear, softmax
    memory = st.analyze_memory(model, text, **OPTIONS)
    by_name = {str(forgetting): forgetting for forgetting in memory.forgetting}
    assert list(by_name) == [
        "layer 0: state", "layer 1: KV cache", "layer 2: state", "layer 3: KV cache",
        "all KV caches", "all states", "all states emptied every 16 tokens",
        "all states emptied every 64 tokens",
    ]  # fmt: skip
    live = load_live(model)
    ids = Corpus(text, model).read(tokens=4 * LENGTH, length=LENGTH).ids
    usual = token_nll(live, ids)
    assert memory.original.nll == pytest.approx(usual.mean(1).tolist(), abs=1e-5)
    assert memory.positions == [16, 32, 64, 71]
    ranges = [usual[:, :16], usual[:, 16:32], usual[:, 32:64], usual[:, 64:]]
    by_position = [float(part.mean()) for part in ranges]
    assert memory.original.nll_by_position == pytest.approx(by_position, abs=1e-5)

    def see_itself_alone(module: Any, args: Any, kwargs: Any) -> Any:
        time = kwargs["hidden_states"].shape[1]
        diagonal = torch.full((time, time), float("-inf")).fill_diagonal_(0.0)
        return args, kwargs | {"attention_mask": diagonal[None, None]}

    attention = live.decoder_layers[1].self_attn
    with attention.register_forward_pre_hook(see_itself_alone, with_kwargs=True):
        expected = token_nll(live, ids).mean(1)
    assert by_name["layer 1: KV cache"].samples.nll == pytest.approx(expected.tolist(), abs=1e-5)
    assert not torch.allclose(expected, usual.mean(1), atol=1e-4)
    for every in (16, 64):
        with emptied_states(live, [0, 2], every):
            expected = token_nll(live, ids).mean(1)
        samples = by_name[f"all states emptied every {every} tokens"].samples
        assert samples.nll == pytest.approx(expected.tolist(), abs=1e-5)
        assert not torch.allclose(expected, usual.mean(1), atol=1e-5)


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "nemotron_h"])
def test_from_disk_it_is_the_same(checkpoint: Load, model_type: str, text: Path) -> None:
    model = st.open(checkpoint(model_type))
    in_memory = st.analyze_memory(model, text, **OPTIONS)
    assert any(forgetting.kind == "KV cache" for forgetting in in_memory.forgetting)
    assert st.analyze_memory(model, text, layerwise=True, **OPTIONS) == in_memory


def two_layers(recall: float, nll: dict[int, float]) -> Memory:
    """Two layers: without layer 1's KV cache `recall` is left; `nll` by interval."""

    def samples(nll: float, share: float) -> Samples:
        return Samples([3.0 + nll, 3.2 + nll], [0.0, 0.0], {16: [share, share - 0.1]})

    forgetting = [
        Forgetting("state", [0], 1, samples(0.0, 0.9)),
        Forgetting("KV cache", [1], 1, samples(0.0, recall)),
        *(Forgetting("state", [0, 2], every, samples(x, 0.7)) for every, x in nll.items()),
    ]
    return Memory(SAMPLES, forgetting, [16, 32])


def test_the_sentence_says_where_recall_is_and_how_far_states_reach() -> None:
    memory = two_layers(0.3, {1: 1.0, 16: 0.2, 64: 0.0})
    assert memory.sentence == (
        "Recall loses most without layer 1: KV cache 60 ± 0 points; without all states 20 ± 0 "
        "points. With all states emptied every 64 tokens, text loses less than 0.01 nats."
    )
    still = "every 16 tokens, the most that was tried, text still loses 0.200 ± 0.000 nats."
    assert still in two_layers(0.3, {1: 1.0, 16: 0.2}).sentence
    assert memory.table().rows[2] == ("layer 1: KV cache", "+0.000 ± 0.000", "-60.0 ± 0.0")


def test_the_command_refuses_options_that_it_does_not_use(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    arguments = ["analyze", str(checkpoint("delta_net")), "--memory", "--text", str(text), "-o",
                 str(tmp_path / "memory.json")]  # fmt: skip
    for extra, message in (
        (["--burn-in", "3"], "--memory does not use --burn-in"),
        (["--sensitivity"], "one at a time"),
        (["--tokens", "100", "--length", "64"], "one window of 64 tokens gives no interval"),
    ):
        code, err, _ = run([*arguments, *extra])
        assert code == 2 and message in err
    code, err, printed = run([*arguments, "--tokens", "256", "--length", "64"])
    assert code is None, err
    assert "all states emptied every 16 tokens" in printed
    assert "mean over" not in printed  # of pairs: it recalls none
