"""A live model's logits at chosen positions, so that they need never be held at all of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PROBE = 8  # tokens on which the short way is compared with the model's own


class Readout:
    """Decoder once, head where asked.

    Some models scale or cap their logits after the head; a probe tells, and then the model's own
    forward pass is used, which holds the logits of one batch.
    """

    def __init__(self, live: Any) -> None:
        self.live, self.head = live, live.get_output_embeddings()
        self.vocabulary = int(self.head.weight.shape[0])
        probe = torch.arange(_PROBE, device=live.device).unsqueeze(0) % self.vocabulary
        with torch.inference_mode():
            whole, short = live(input_ids=probe, use_cache=False).logits, self._short(probe)
            self.plain = torch.allclose(whole, short(torch.arange(_PROBE)), rtol=1e-3, atol=1e-3)

    def at(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Run ids [rows, time]; gives float32 logits [rows, n, vocabulary] at n places."""
        ids = ids.to(self.live.device)
        if self.plain:
            return self._short(ids)
        logits = self.live(input_ids=ids, use_cache=False).logits
        return lambda places: logits[:, places.to(logits.device)].float()

    def _short(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        decoder: Any = self.live.base_model
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
        return lambda places: self.head(hidden[:, places.to(hidden.device)]).float()


def divergence(
    before: Readout, after: Readout, ids: Tensor, chunk: int = 128
) -> tuple[Tensor, Tensor]:
    """KL(before || after) in nats and top-1 agreement, means over each row's tokens, [rows] each.

    Both models read ids [rows, time]; logits exist for `chunk` positions at a time.
    """
    rows, time = ids.shape
    kl = torch.zeros(rows, dtype=torch.float64)
    same = torch.zeros(rows, dtype=torch.float64)
    with torch.inference_mode():
        old, new = before.at(ids), after.at(ids)
        for start in range(0, time, chunk):
            places = torch.arange(start, min(start + chunk, time))
            p, q = old(places).log_softmax(-1), new(places).log_softmax(-1)
            kl += (p.exp() * (p - q)).sum((-1, -2)).double().cpu()
            same += (p.argmax(-1) == q.argmax(-1)).sum(-1).double().cpu()
    return (kl / time).clamp_min(0.0), same / time
