"""A live model's logits at chosen positions, so that they need never be held at all of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .live import LiveModel

Logits = Callable[[Tensor], Tensor]
"""Places [n] of a sequence that was read -> float32 logits [rows, n, vocabulary]."""

_MOST_LOGITS = 2**26  # held at a time, of all rows, while gradients are taken
_PROBE = 8  # tokens on which the short way is compared with the model's own


def probe(vocabulary: int) -> Tensor:
    """Ids [1, time] on which a reader tries whether the short way is the model's own."""
    return torch.arange(_PROBE).unsqueeze(0) % vocabulary


class LogitReader:
    """Decoder once, head where asked.

    Some models scale or cap their logits after the head; a probe tells, and then the model's own
    forward pass is used, which holds the logits of one batch. It is run `within` a context, where
    the model needs one for that.
    """

    def __init__(
        self,
        live: LiveModel,
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.live, self.head = live, live.head
        self.vocabulary = int(self.head.weight.shape[0])
        ids = probe(self.vocabulary)
        with torch.inference_mode(), within():
            whole, short = live.logits(ids), self._short(ids)
            found = short(torch.arange(_PROBE)).to(whole.device)
            close = max(1e-3, 4 * torch.finfo(whole.dtype).eps)
            gap = (whole.float() - found).abs() - close * found.abs()
            self.plain = bool(gap.max() <= close * whole.abs().max())

    def at(self, ids: Tensor) -> Logits:
        """Run ids [rows, time]; gives float32 logits [rows, n, vocabulary] at n places."""
        if self.plain:
            return self._short(ids)
        logits = self.live.logits(ids)
        return lambda places: logits[:, places.to(logits.device)].float()

    def backward(
        self, ids: Tensor, places: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """Add the gradients of `loss(logits, places)`, which is a sum over places, to those of the
        parameters; logits exist for a part of the places at a time."""
        part = max(1, _MOST_LOGITS // (len(ids) * self.vocabulary))
        if not self.plain:
            part = len(places)
        hidden = self.live.hidden(ids) if self.plain else self.live.logits(ids)
        end = hidden.detach().requires_grad_()
        for some in torch.split(places, part):
            chosen = end[:, some.to(end.device)]
            logits = self.head(chosen.to(self.head.weight.dtype)) if self.plain else chosen
            gradient: Any = loss(logits.float(), some)
            gradient.backward()
        hidden.backward(end.grad)  # type: ignore[no-untyped-call]

    def _short(self, ids: Tensor) -> Logits:
        hidden = self.live.hidden(ids)
        dtype = self.head.weight.dtype  # Mamba-2's last norm gives float32, whatever the weights

        def read(places: Tensor) -> Tensor:
            logits: Tensor = self.head(hidden[:, places.to(hidden.device)].to(dtype))
            return logits.float()

        return read


@dataclass(frozen=True, eq=False)
class Comparison:
    """How a model reads sequences, compared with the original; float64 [rows] each."""

    kl: Tensor  # KL(original || model) in nats, mean over the row's tokens
    same: Tensor  # share of tokens with the same most likely successor
    log_likelihood: Tensor  # of the row's tokens after the first, summed, by the model


def compared(old: Logits, new: Logits, ids: Tensor, chunk: int = 128) -> Comparison:
    """Two readings of ids [rows, time]; logits exist for `chunk` positions at a time.

    With the same reading twice the model is only read for its likelihood.
    """
    time, sums = ids.shape[1], list[Tensor]()
    with torch.inference_mode():
        for start in range(0, time, chunk):
            places = torch.arange(start, min(start + chunk, time))
            q = new(places).log_softmax(-1)
            p = q if old is new else old(places).to(q.device).log_softmax(-1)
            kl = (p.exp() * (p - q)).sum((-1, -2))
            same = (p.argmax(-1) == q.argmax(-1)).sum(-1)
            following = ids[:, start + 1 : start + 1 + len(places)].to(q.device).unsqueeze(-1)
            known = q[:, : following.shape[1]].gather(-1, following).squeeze(-1).sum(-1)
            sums.append(torch.stack([kl.double(), same.double(), known.double()]))
        kl, same, likelihood = torch.stack(sums).sum(0).cpu()
    return Comparison((kl / time).clamp_min(0.0), same / time, likelihood)
