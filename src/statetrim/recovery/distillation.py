"""Cross-entropy + T² KL(teacher || student), with logits of both for a chunk of positions only.

The heads are frozen, so the gradient of a chunk is known as soon as its loss is: it is computed in
the forward pass, and no logits are kept for the backward one.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..runtime.live import decoder_of
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
        asked: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self.head, self.temperature = head, temperature
        self.asked = asked  # int64 [n]: where the next token of a recall sequence can be known
        # Past nn.Module, which would register them (again).
        self.__dict__.update(
            teacher=teacher, teacher_head=teacher_head, frozen_mode=list(frozen_mode)
        )

    def train(self, mode: bool = True) -> "Distillation":
        super().train(mode)
        for module in self.__dict__["frozen_mode"]:
            module.eval()
        return self

    def forward(self, input_ids: Tensor, made: Tensor | None = None) -> dict[str, Tensor]:
        """`input_ids` [batch, time] -> the mean of the rows' losses, and `sums` [2, 3]: for text
        and for recall the number of rows, and their cross-entropies and KLs added up.

        The loss of a row is the mean over its predicted tokens; where it is a recall sequence
        (`made`, bool [batch]), over those that can be answered.
        """
        teacher: Any = self.__dict__["teacher"]
        taught: Tensor | None = None
        if teacher is not None:
            with torch.no_grad():
                taught = _hidden(teacher, input_ids)
        learned = _hidden(self.student, input_ids)
        following = input_ids.roll(-1, 1)
        weights = self._weights(input_ids, made)  # [batch, time, sources]
        counted = weights.sum(-1) > 0
        # One call for both sources: of a sharded head the processes take part in every gathering,
        # and one of them may have no recall sequence.
        loss, parts = chunked_loss(
            learned[counted],
            following[counted],
            self.head,
            None if taught is None else taught[counted],
            self.__dict__["teacher_head"],
            self.temperature,
            None,
            weights[counted],
        )
        rows = torch.stack([(x > 0).any(1).sum() for x in weights.unbind(-1)])
        return {"loss": loss, "sums": torch.cat([rows[None], parts * len(input_ids)]).mT}

    def _weights(self, input_ids: Tensor, made: Tensor | None) -> Tensor:
        """What every position counts in the mean over all rows, for text and for recall."""
        rows, time = input_ids.shape
        weights = torch.zeros(rows, time, 2, device=input_ids.device)
        if made is None:
            weights[:, :-1, 0] = 1 / (rows * (time - 1))
            return weights
        assert self.asked is not None
        asked = torch.zeros(time, dtype=torch.bool, device=made.device)
        asked[self.asked.to(made.device)] = True
        weights[~made, :-1, 0] = 1 / (rows * (time - 1))
        weights[:, :, 1] = made[:, None] * asked / (rows * len(self.asked))
        return weights

    @torch.no_grad()
    def recall(self, ids: Tensor) -> float:
        """Part of the answers of recall sequences, int64 [rows, time], that the student gives."""
        assert self.asked is not None
        asked = self.asked.to(ids.device)
        hidden, answers = _hidden(self.student, ids)[:, asked], ids[:, asked + 1].flatten()
        weight, bias = self.head.weight, self.head.bias
        chunks = torch.split(hidden.flatten(0, 1), _positions_at_once(weight))
        best = torch.cat([self.head.logits(chunk, weight, bias).argmax(-1) for chunk in chunks])
        return float((best == answers).double().mean())


def _hidden(live: Any, input_ids: Tensor) -> Tensor:
    """Final hidden states [batch, time, hidden]."""
    hidden: Tensor = decoder_of(live)(input_ids=input_ids, use_cache=False).last_hidden_state
    return hidden


def chunked_loss(
    hidden: Tensor,
    targets: Tensor,
    head: LogitHead,
    taught: Tensor | None = None,
    teacher_head: LogitHead | None = None,
    temperature: float = 2.0,
    chunk: int | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean loss over positions, and its parts [2]: cross-entropy and KL (at `temperature`).

    `hidden` and `taught` [positions, hidden], `targets` [positions]. With `weights` [positions,
    sources], the sum by these, and its parts [2, sources].
    """
    apply: Any = _ChunkedLoss.apply
    given = weights
    if weights is None:
        weights = torch.full((len(targets), 1), 1 / len(targets), device=hidden.device)
    loss, parts = apply(hidden, targets, head, taught, teacher_head, temperature, chunk, weights)
    return loss, parts.squeeze(-1) if given is None else parts


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
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        count = len(targets)
        weight, bias = head.weight, head.bias
        if taught is not None:
            assert teacher_head is not None
            teacher_weight, teacher_bias = teacher_head.weight, teacher_head.bias
        chunk = chunk or _positions_at_once(weight)
        wanted = ctx.needs_input_grad[0]
        gradient = torch.empty_like(hidden) if wanted else None
        each = torch.zeros(2, count, dtype=torch.float64, device=hidden.device)
        counts = weights.sum(-1, keepdim=True)
        for start in range(0, count, chunk):
            here = slice(start, min(start + chunk, count))
            logits = head.logits(hidden[here], weight, bias)
            teaching = None
            if taught is not None and teacher_head is not None:
                teaching = teacher_head.logits(taught[here], teacher_weight, teacher_bias)
            slope = _chunk(logits, targets[here], teaching, temperature, each[:, here], wanted)
            if gradient is not None:
                gradient[here] = head.backward(slope, logits, weight).mul_(counts[here])
        parts = (each @ weights.double()).float()
        if gradient is not None:
            ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(parts)
        return parts[0].sum() + temperature**2 * parts[1].sum(), parts

    @staticmethod
    def backward(ctx: Any, loss: Tensor, parts: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * loss.to(gradient.dtype), *[None] * 7


def _positions_at_once(weight: Tensor) -> int:
    return max(16, CHUNK_LOGITS.get(weight.device.type, 2**24) // len(weight))


def _chunk(
    logits: Tensor,
    targets: Tensor,
    teaching: Tensor | None,
    temperature: float,
    each: Tensor,
    differentiate: bool,
) -> Tensor:
    """Write the positions' parts to `each` [2, positions]; returns the gradient by the logits, if
    wanted.

    In place wherever possible: these are the largest tensors of a step. `teaching` is used up.
    """
    rows = torch.arange(len(targets), device=targets.device)
    log_q = logits.log_softmax(-1)
    each[0] = -log_q[rows, targets]
    slope = log_q
    if differentiate:
        slope = log_q.exp_()
        slope[rows, targets] -= 1
    if teaching is not None:
        warm_q = (logits / temperature).log_softmax(-1)
        warm_p = teaching.div_(temperature).log_softmax(-1)
        p = torch.exp(warm_p, out=teaching)
        each[1] = torch.linalg.vecdot(p, warm_p.sub_(warm_q))
        if differentiate:
            slope.add_(warm_q.exp_().sub_(p), alpha=temperature)
    return slope
