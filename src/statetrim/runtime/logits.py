"""A live model's logits at chosen positions, so that they need never be held at all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .live import LiveModel

Logits = Callable[[Tensor], Tensor]
"""Places [n] of a sequence that was read -> float32 logits [rows, n, vocabulary]."""

_PROBE = 8  # tokens on which the short way is compared with the model's own


class LogitReader:
    """Decoder once, head where asked.

    Some models scale or cap their logits after the head; a probe tells, and then the model's own
    forward pass is used, which holds the logits of one batch.
    """

    def __init__(self, live: LiveModel) -> None:
        self.live, self.head = live, live.module.get_output_embeddings()
        self.vocabulary = int(self.head.weight.shape[0])
        probe = torch.arange(_PROBE).unsqueeze(0) % self.vocabulary
        with torch.inference_mode():
            whole, short = live.logits(probe), self._short(probe)
            close = max(1e-3, 4 * torch.finfo(whole.dtype).eps)
            self.plain = torch.allclose(
                whole.float(),
                short(torch.arange(_PROBE)),
                rtol=close,
                atol=close * float(whole.abs().max()),
            )

    def at(self, ids: Tensor) -> Logits:
        """Run ids [rows, time]; gives float32 logits [rows, n, vocabulary] at n places."""
        if self.plain:
            return self._short(ids)
        logits = self.live.logits(ids)
        return lambda places: logits[:, places.to(logits.device)].float()

    def _short(self, ids: Tensor) -> Logits:
        hidden = self.live.hidden(ids)
        dtype = self.head.weight.dtype  # Mamba-2's last norm gives float32, whatever the weights

        def read(places: Tensor) -> Tensor:
            logits: Tensor = self.head(hidden[:, places.to(hidden.device)].to(dtype))
            return logits.float()

        return read


@dataclass(frozen=True, eq=False)
class Comparison:
    """How a model reads sequences, beside the original; float64 [rows] each."""

    kl: Tensor  # KL(original || model) in nats, mean over the row's tokens
    same: Tensor  # share of tokens with the same most likely successor
    log_likelihood: Tensor  # of the row's tokens after the first, summed, by the model


def compare(before: LogitReader, after: LogitReader, ids: Tensor, chunk: int = 128) -> Comparison:
    """Both models read ids [rows, time].

    With the same reader twice the model runs once, and is only read for its likelihood.
    """
    with torch.inference_mode():
        new = after.at(ids)
        return compared(new if before is after else before.at(ids), new, ids, chunk)


def compared(old: Logits, new: Logits, ids: Tensor, chunk: int = 128) -> Comparison:
    """The same of two readings of ids; logits exist for `chunk` positions at a time."""
    rows, time = ids.shape
    kl, same, likelihood = (torch.zeros(rows, dtype=torch.float64) for _ in range(3))
    with torch.inference_mode():
        for start in range(0, time, chunk):
            places = torch.arange(start, min(start + chunk, time))
            q = new(places).log_softmax(-1)
            p = q if old is new else old(places).log_softmax(-1)
            kl += (p.exp() * (p - q)).sum((-1, -2)).double().cpu()
            same += (p.argmax(-1) == q.argmax(-1)).sum(-1).double().cpu()
            following = ids[:, start + 1 : start + 1 + len(places)].to(q.device).unsqueeze(-1)
            known = q[:, : following.shape[1]].gather(-1, following).squeeze(-1)
            likelihood += known.sum(-1).double().cpu()
    return Comparison((kl / time).clamp_min(0.0), same / time, likelihood)
