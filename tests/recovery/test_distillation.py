"""The chunked loss compared with a plain computation in float64, its memory, and the head's logits
compared with those of the stock models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import statetrim as st
from helpers import tiny
from helpers.forker import Forker
from statetrim.recovery.distillation import LogitHead, checked_logit_head, chunked_loss
from statetrim.runtime.loading import load_live

POSITIONS, HIDDEN, VOCABULARY = 37, 16, 101


def plain_losses(
    hidden: Tensor, targets: Tensor, head: LogitHead, teacher_hidden: Tensor | None,
    teacher: LogitHead, temperature: float,
) -> Tensor:  # fmt: skip
    """Cross-entropy and KL of each position by definition, float64 [2, positions]."""

    def logits(x: Tensor, logit_head: LogitHead) -> Tensor:
        y = (x.double() @ logit_head.module.weight.detach().double().T) * logit_head.scale
        if logit_head.module.bias is not None:
            y = y + logit_head.module.bias.detach().double() * logit_head.scale
        return y if logit_head.cap is None else logit_head.cap * torch.tanh(y / logit_head.cap)

    student = logits(hidden, head)
    log_q = student - student.logsumexp(-1, keepdim=True)
    ce = -log_q.gather(1, targets[:, None]).squeeze(1)
    kl = torch.zeros_like(ce)
    if teacher_hidden is not None:
        at_t = student / temperature
        log_q_at_t = at_t - at_t.logsumexp(-1, keepdim=True)
        p = (logits(teacher_hidden, teacher) / temperature).softmax(-1)
        kl = (p * (p.log() - log_q_at_t)).sum(-1)
    return torch.stack([ce, kl])


def head(seed: int, scale: float = 1.0, cap: float | None = None, bias: bool = False) -> LogitHead:
    torch.manual_seed(seed)
    module = nn.Linear(HIDDEN, VOCABULARY, bias=bias)
    module.weight.data.normal_()
    return LogitHead(module, scale, cap)


@pytest.mark.parametrize("chunk", [1, 7, POSITIONS, 1000])
@pytest.mark.parametrize(
    "kind",
    [{}, {"scale": 0.25}, {"scale": 3.0, "cap": 5.0}, {"bias": True, "cap": 30.0}],
    ids=lambda kind: "+".join(kind) or "plain",
)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("with_teacher", [True, False])
def test_loss_and_gradient(
    chunk: int, kind: dict[str, float], temperature: float, with_teacher: bool
) -> None:
    student, teacher = head(0, **kind), head(1)  # type: ignore[arg-type]
    torch.manual_seed(2)
    hidden = torch.randn(POSITIONS, HIDDEN, requires_grad=True)
    teacher_hidden = torch.randn(POSITIONS, HIDDEN) if with_teacher else None
    targets = torch.randint(0, VOCABULARY, (POSITIONS,))
    weights = torch.rand(POSITIONS, 2) / POSITIONS
    loss, parts = chunked_loss(
        hidden, targets, student, weights, teacher_hidden, teacher, temperature, chunk
    )
    (3 * loss).backward()  # type: ignore[no-untyped-call]
    gradient, hidden.grad = hidden.grad, None
    plain = plain_losses(hidden, targets, student, teacher_hidden, teacher, temperature)
    expected_parts = plain @ weights.double()
    expected = expected_parts[0].sum() + temperature**2 * expected_parts[1].sum()
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert gradient is not None and hidden.grad is not None
    torch.testing.assert_close(parts.double(), expected_parts.detach(), rtol=2e-6, atol=1e-7)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=2e-6, abs=1e-7)
    torch.testing.assert_close(gradient, hidden.grad, rtol=1e-4, atol=1e-6)


MEASURE = """
import sys, torch
from torch import nn
from statetrim.recovery.distillation import LogitHead, chunked_loss
positions, vocabulary, hidden = int(sys.argv[1]), 50_304, 64
student, teacher = (LogitHead(nn.Linear(hidden, vocabulary, bias=False)) for _ in range(2))
for count in (32, positions):  # the first is a warm-up
    x = torch.randn(count, hidden, requires_grad=True)
    targets = torch.randint(0, vocabulary, (count,))
    weights = torch.full((count, 1), 1 / count)
    loss, _ = chunked_loss(x, targets, student, weights, torch.randn(count, hidden), teacher)
    loss.backward()
"""


def test_memory_does_not_grow_with_the_sequence(forker: Forker, tmp_path: Path) -> None:
    """All logits of the longer sequence would take 2 x 412 MB."""
    short, long = 256, 2048
    (tmp_path / "measure.py").write_text(MEASURE)
    runs = [
        forker.run([str(tmp_path / "measure.py"), str(count)], script=True)
        for count in (short, long)
    ]
    assert [run["code"] for run in runs] == [0, 0], runs[0]["err"]
    peaks = [run["peak"] for run in runs]
    hidden_bytes = (long - short) * 64 * 4  # one set of hidden states
    # What malloc keeps of freed chunks differs by some 30 MB with what the forking process holds.
    assert peaks[1] - peaks[0] < 8 * hidden_bytes + 64 * 2**20, peaks


@pytest.mark.parametrize("model_type", [*tiny.MODEL_TYPES, "minicpmv4_6", "nemotron_h_omni"])
def test_logits_of_the_head_are_the_stock_ones(model_type: str, checkpoint: Any) -> None:
    """granitemoehybrid divides its logits and falcon_h1 multiplies them; here by large factors."""
    live_model = load_live(checkpoint(model_type))
    module = live_model.module
    if model_type == "granitemoehybrid":
        module.config.logits_scaling = 8.0
    if model_type == "falcon_h1":
        module.model.lm_head_multiplier = module.config.lm_head_multiplier = 0.25
    head = checked_logit_head(live_model)
    ids = torch.randint(1, tiny.VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = live_model.hidden_states(ids)
        head_logits = head.logits(hidden, head.weight, head.bias)
        torch.testing.assert_close(head_logits, module(input_ids=ids, use_cache=False).logits)


def test_an_unknown_way_to_logits_is_refused(checkpoint: Any) -> None:
    live = load_live(checkpoint("granitemoehybrid"))
    real_forward = live.module.forward

    def squared(**inputs: Any) -> Any:
        result = real_forward(**inputs)
        result.logits = result.logits.square()
        return result

    live.module.forward = squared
    with pytest.raises(st.StatetrimError, match="in a way that statetrim does not know"):
        checked_logit_head(live)
