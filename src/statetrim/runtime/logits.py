"""A live model's logits at chosen positions, so that they need never be held at all of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .live import LiveModel

LogitsAt = Callable[[Tensor], Tensor]
"""Places [n] of a sequence that was read -> float32 logits [rows, n, vocabulary]."""

_MAX_LOGITS = 2**26  # held at a time, of all rows, while gradients are taken
_PROBE_TOKENS = 8  # tokens on which the short way is compared with the model's own


def probe_ids(vocab_size: int) -> Tensor:
    """Ids [1, time] on which a reader tries whether the short way is the model's own."""
    return torch.arange(_PROBE_TOKENS).unsqueeze(0) % vocab_size


class LogitReader:
    """Decoder once, head where asked.

    Some models scale or cap their logits after the head; a probe tells, and then the model's own
    forward pass is used, which holds the logits of one batch. It is run `within` a context, where
    the model needs one for that.
    """

    def __init__(
        self,
        live: LiveModel,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.live, self.lm_head = live, live.lm_head
        self.vocab_size = int(self.lm_head.weight.shape[0])
        ids = probe_ids(self.vocab_size)
        with torch.inference_mode(), context():
            expected, logits_at = live.logits(ids), self._head_logits(ids)
            logits = logits_at(torch.arange(_PROBE_TOKENS)).to(expected.device)
            tolerance = max(1e-3, 4 * torch.finfo(expected.dtype).eps)
            excess = (expected.float() - logits).abs() - tolerance * logits.abs()
            self.applies_head = bool(excess.max() <= tolerance * expected.abs().max())

    def forward(self, ids: Tensor) -> LogitsAt:
        """Run ids [rows, time]; gives float32 logits [rows, n, vocabulary] at n places."""
        if self.applies_head:
            return self._head_logits(ids)
        logits = self.live.logits(ids)
        return lambda positions: logits[:, positions.to(logits.device)].float()

    def backward(
        self, ids: Tensor, positions: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """Add the gradients of `loss(logits, places)`, which is a sum over places, to those of the
        parameters; logits exist for a part of the places at a time."""
        chunk_size = max(1, _MAX_LOGITS // (len(ids) * self.vocab_size))
        if not self.applies_head:
            chunk_size = len(positions)
        hidden = self.live.hidden_states(ids) if self.applies_head else self.live.logits(ids)
        detached = hidden.detach().requires_grad_()
        for chunk in torch.split(positions, chunk_size):
            selected = detached[:, chunk.to(detached.device)]
            logits = (
                self.lm_head(selected.to(self.lm_head.weight.dtype))
                if self.applies_head
                else selected
            )
            chunk_loss: Any = loss(logits.float(), chunk)
            chunk_loss.backward()
        hidden.backward(detached.grad)  # type: ignore[no-untyped-call]

    def _head_logits(self, ids: Tensor) -> LogitsAt:
        hidden = self.live.hidden_states(ids)
        dtype = self.lm_head.weight.dtype  # Mamba-2's last norm gives float32, whatever the weights

        def logits_at(positions: Tensor) -> Tensor:
            logits: Tensor = self.lm_head(hidden[:, positions.to(hidden.device)].to(dtype))
            return logits.float()

        return logits_at


@dataclass(frozen=True, eq=False)
class Comparison:
    """How a model reads sequences, compared with the original; float64 [rows] each."""

    kl: Tensor  # KL(original || model) in nats, mean over the row's tokens
    same_top_token: Tensor  # share of tokens with the same most likely successor
    log_likelihood: Tensor  # of the row's tokens after the first, summed, by the model


def compare_logits(
    original: LogitsAt, model: LogitsAt, ids: Tensor, chunk: int = 128
) -> Comparison:
    """Two readings of ids [rows, time]; logits exist for `chunk` positions at a time.

    With the same reading twice the model is only read for its likelihood.
    """
    time, chunk_sums = ids.shape[1], list[Tensor]()
    with torch.inference_mode():
        for start in range(0, time, chunk):
            positions = torch.arange(start, min(start + chunk, time))
            q = model(positions).log_softmax(-1)
            p = q if original is model else original(positions).to(q.device).log_softmax(-1)
            kl = (p.exp() * (p - q)).sum((-1, -2))
            same_top_token = (p.argmax(-1) == q.argmax(-1)).sum(-1)
            following = ids[:, start + 1 : start + 1 + len(positions)].to(q.device).unsqueeze(-1)
            token_log_likelihood = (
                q[:, : following.shape[1]].gather(-1, following).squeeze(-1).sum(-1)
            )
            chunk_sums.append(
                torch.stack([kl.double(), same_top_token.double(), token_log_likelihood.double()])
            )
        kl, same_top_token, log_likelihood = torch.stack(chunk_sums).sum(0).cpu()
    return Comparison((kl / time).clamp_min(0.0), same_top_token / time, log_likelihood)
