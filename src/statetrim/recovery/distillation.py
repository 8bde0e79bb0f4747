"""Cross-entropy + T² KL(teacher || student), with logits of both for a chunk of positions only.

The heads are frozen, so the gradient of a chunk is known as soon as its loss is: it is computed in
the forward pass, and no logits are kept for the backward one.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .logit_head import LogitHead

CHUNK_LOGITS = {"cpu": 2**20, "cuda": 2**24}
"""Logits of one model held at a time: as many as fit a CPU cache, or keep a GPU busy."""


class Distillation(nn.Module):
    """A student with its loss; the teacher, if any, is no part of what is trained or saved."""

    def __init__(
        self,
        student: Any,
        head: LogitHead,
        teacher: Any = None,
        teacher_head: LogitHead | None = None,
        temperature: float = 2.0,
        frozen_mode: tuple[nn.Module, ...] = (),
    ) -> None:
        super().__init__()
        self.student = student
        self.head, self.temperature = head, temperature
        # Past nn.Module, which would register them (again).
        self.__dict__.update(
            teacher=teacher, teacher_head=teacher_head, frozen_mode=list(frozen_mode)
        )

    def train(self, mode: bool = True) -> "Distillation":
        super().train(mode)
        for module in self.__dict__["frozen_mode"]:
            module.eval()
        return self

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        """`input_ids` [batch, time] -> mean loss, and its parts, over the predicted tokens."""
        teacher: Any = self.__dict__["teacher"]
        taught: Tensor | None = None
        if teacher is not None:
            with torch.no_grad():
                taught = _predicting(teacher, input_ids)
        learned = _predicting(self.student, input_ids)
        targets = input_ids[:, 1:].flatten()
        loss, parts = chunked_loss(
            learned, targets, self.head, taught, self.__dict__["teacher_head"], self.temperature
        )
        return {"loss": loss, "ce": parts[0], "kl": parts[1]}


def _predicting(live: Any, input_ids: Tensor) -> Tensor:
    """Final hidden states [batch * (time - 1), hidden] of the positions that have a next token."""
    hidden: Tensor = live.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    return hidden[:, :-1].flatten(0, 1)


def chunked_loss(
    hidden: Tensor,
    targets: Tensor,
    head: LogitHead,
    taught: Tensor | None = None,
    teacher_head: LogitHead | None = None,
    temperature: float = 2.0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean loss over positions, and its parts [2]: cross-entropy and KL (at `temperature`).

    `hidden` and `taught` [positions, hidden], `targets` [positions].
    """
    apply: Any = _ChunkedLoss.apply
    loss, parts = apply(hidden, targets, head, taught, teacher_head, temperature, chunk)
    return loss, parts


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        targets: Tensor,
        head: LogitHead,
        taught: Tensor | None,
        teacher_head: LogitHead | None,
        temperature: float,
        chunk: int | None,
    ) -> tuple[Tensor, Tensor]:
        count = len(targets)
        weight, bias = head.weight, head.bias
        if taught is not None:
            assert teacher_head is not None
            teacher_weight, teacher_bias = teacher_head.weight, teacher_head.bias
        chunk = chunk or max(16, CHUNK_LOGITS.get(hidden.device.type, 2**24) // len(weight))
        wanted = ctx.needs_input_grad[0]
        gradient = torch.empty_like(hidden) if wanted else None
        parts = torch.zeros(2, dtype=torch.float64, device=hidden.device)
        for start in range(0, count, chunk):
            here = slice(start, min(start + chunk, count))
            logits = head.logits(hidden[here], weight, bias)
            teaching = None
            if taught is not None and teacher_head is not None:
                teaching = teacher_head.logits(taught[here], teacher_weight, teacher_bias)
            slope = _chunk(logits, targets[here], teaching, temperature, parts, wanted)
            if gradient is not None:
                gradient[here] = head.backward(slope, logits, weight).div_(count)
        parts = (parts / count).float()
        if gradient is not None:
            ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(parts)
        return parts[0] + temperature**2 * parts[1], parts

    @staticmethod
    def backward(ctx: Any, loss: Tensor, parts: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * loss.to(gradient.dtype), *[None] * 6


def _chunk(
    logits: Tensor,
    targets: Tensor,
    teaching: Tensor | None,
    temperature: float,
    parts: Tensor,
    differentiate: bool,
) -> Tensor:
    """Add the chunk's sums to `parts`; returns the gradient by its logits, if wanted.

    In place wherever possible: these are the largest tensors of a step. `teaching` is used up.
    """
    rows = torch.arange(len(targets), device=targets.device)
    log_q = logits.log_softmax(-1)
    parts[0] -= log_q[rows, targets].sum(dtype=torch.float64)
    slope = log_q
    if differentiate:
        slope = log_q.exp_()
        slope[rows, targets] -= 1
    if teaching is not None:
        warm_q = (logits / temperature).log_softmax(-1)
        warm_p = teaching.div_(temperature).log_softmax(-1)
        p = torch.exp(warm_p, out=teaching)
        parts[1] += torch.linalg.vecdot(p, warm_p.sub_(warm_q)).sum(dtype=torch.float64)
        if differentiate:
            slope.add_(warm_q.exp_().sub_(p), alpha=temperature)
    return slope
