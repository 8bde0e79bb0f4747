"""Logits of a model at chosen positions, without holding those of all positions in memory.

The final hidden states of a model can be kept in main memory, so that its layers can be unloaded:
two models are then compared on every token, though only one is in memory at a time.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .live import LiveModel
from .sequential import HiddenStore, LayerWalk, from_final_hidden

LogitsAt = Callable[[Tensor], Tensor]
"""Positions [n] of a batch -> float32 logits [rows, n, vocabulary]."""

_MAX_LOGITS = 2**26  # in memory at once, over all rows, during backward
_PROBE_TOKENS = 8


def probe_ids(vocab_size: int) -> Tensor:
    """Ids [1, time] on which the head's output is compared with the model's logits."""
    return torch.arange(_PROBE_TOKENS).unsqueeze(0) % vocab_size


class LogitReader:
    """Runs the decoder once, and the head only at the positions asked for.

    Some models scale or cap logits after the head. Then (`applies_head` is False, from a probe) the
    model's own forward pass is used, and the logits of a whole batch are in memory. The probe runs
    in `context()`.
    """

    def __init__(
        self, live: LiveModel, context: Callable[[], AbstractContextManager[object]] = nullcontext
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
        """Run ids [rows, time]; the function gives float32 logits [rows, n, vocabulary]."""
        if self.applies_head:
            return self._head_logits(ids)
        logits = self.live.logits(ids)
        return lambda positions: logits[:, positions.to(logits.device)].float()

    def backward(
        self, ids: Tensor, positions: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """Run ids [rows, time] and accumulate the parameters' gradients of `loss(logits,
        positions)`, which must be a sum over positions. It is called for a chunk of positions at a
        time, or once for all if not `applies_head`."""
        chunk_size = max(1, _MAX_LOGITS // (len(ids) * self.vocab_size))
        if not self.applies_head:
            chunk_size = len(positions)
        hidden = self.live.hidden_states(ids) if self.applies_head else self.live.logits(ids)
        detached = hidden.detach().requires_grad_()
        for chunk in torch.split(positions, chunk_size):
            logits = detached[:, chunk.to(detached.device)]
            if self.applies_head:
                logits = self.lm_head(logits.to(self.lm_head.weight.dtype))
            chunk_loss: Any = loss(logits.float(), chunk)
            chunk_loss.backward()
        hidden.backward(detached.grad)  # type: ignore[no-untyped-call]

    def _head_logits(self, ids: Tensor) -> LogitsAt:
        """Run the decoder on ids [rows, time] now; the function runs the head at positions."""
        hidden = self.live.hidden_states(ids)
        dtype = self.lm_head.weight.dtype  # Mamba-2's final norm returns float32

        def logits_at(positions: Tensor) -> Tensor:
            logits: Tensor = self.lm_head(hidden[:, positions.to(hidden.device)].to(dtype))
            return logits.float()

        return logits_at


@dataclass(frozen=True, eq=False)
class Comparison:
    """Agreement of a model with the original on token sequences; float64, [rows] unless noted."""

    kl: Tensor  # KL(original || model) in nats, mean over the row's tokens
    same_top_token: Tensor  # share of tokens after which both predict the same token
    token_log_likelihood: Tensor  # [rows, time - 1], of the tokens after the first under the model

    @property
    def log_likelihood(self) -> Tensor:
        """Sum over the row's tokens after the first."""
        return self.token_log_likelihood.sum(-1)


def compare_logits(
    original: LogitsAt, model: LogitsAt, ids: Tensor, chunk: int = 128
) -> Comparison:
    """Compare two models on ids [rows, time], for `chunk` positions at a time. If `original is
    model`, logits are computed once, for the log likelihood; KL is 0 and agreement 1."""
    time, chunk_sums, likelihoods = ids.shape[1], list[Tensor](), list[Tensor]()
    with torch.inference_mode():
        for start in range(0, time, chunk):
            positions = torch.arange(start, min(start + chunk, time))
            q = model(positions).log_softmax(-1)
            p = q if original is model else original(positions).to(q.device).log_softmax(-1)
            kl = (p.exp() * (p - q)).sum((-1, -2))
            same_top_token = (p.argmax(-1) == q.argmax(-1)).sum(-1)
            following = ids[:, start + 1 : start + 1 + len(positions)].to(q.device).unsqueeze(-1)
            predicted = q[:, : following.shape[1]]
            likelihoods.append(predicted.gather(-1, following).squeeze(-1).double().cpu())
            chunk_sums.append(torch.stack((kl.double(), same_top_token.double())))
        kl, same_top_token = torch.stack(chunk_sums).sum(0).cpu()
    likelihood = torch.cat(likelihoods, 1)
    return Comparison((kl / time).clamp_min(0.0), same_top_token / time, likelihood)


class FinalHiddenStates:
    """Runs a model on batches of ids [rows, time] and keeps the output of its last layer; `report`
    is called with the number of batches done."""

    def __init__(
        self,
        live: LiveModel,
        batches: Sequence[Tensor],
        report: Callable[[int], None] = lambda batch: None,
    ) -> None:
        self.live = live
        vocab_size = int(live.lm_head.weight.shape[0])
        self._batches = [probe_ids(vocab_size), *batches]  # the reader's probe is step 0
        self._store = HiddenStore()
        if live.weights is None:
            last_layer, outputs = live.decoder_layers[-1], list[Any]()
            hook = last_layer.register_forward_hook(lambda module, args, x: outputs.append(x))
            with torch.inference_mode(), hook:
                for step, ids in enumerate(self._batches):
                    live.hidden_states(ids)
                    self._store.write(step, outputs.pop())
                    report(step)
        else:
            walk = LayerWalk(live, self._batches)
            depth, last_batch = len(live.decoder_layers), len(self._batches) - 1
            for number in walk.layers():
                for step in range(len(self._batches)):
                    walk.run_batch(step)
                report((number + 1) * last_batch // depth)
            self._store = walk.hidden_store
        self._reader = LogitReader(live, lambda: from_final_hidden(live, self._store, 0))

    def logits_at(self, batch: int) -> LogitsAt:
        """The logits of the batch with this index."""
        with from_final_hidden(self.live, self._store, batch + 1):
            return self._reader.forward(self._batches[batch + 1])

    def unload_layers(self) -> None:
        """Free the memory of the decoder layers' weights, for good: logits of these batches do not
        need them, but the model must not run other text afterwards."""
        for layer in self.live.decoder_layers:
            layer.to("meta")
