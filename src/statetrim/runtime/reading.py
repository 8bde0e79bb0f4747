"""What a model makes of sequences, kept so that the model itself can go.

The output of its last decoder layer waits in main memory; last norm and head make logits of it. So
two models are compared on every token, though only one is in memory at a time.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from .live import LiveModel
from .logits import LogitReader, Logits, probe
from .mixers import hidden_of
from .sequential import LayerWalk, behind_the_layers


class Reading:
    """Batches of ids [rows, time] that a model has read; `report` is told of each batch."""

    def __init__(
        self,
        live: LiveModel,
        batches: Sequence[Tensor],
        report: Callable[[int], None] = lambda batch: None,
    ) -> None:
        self.live = live
        vocabulary = int(live.head.weight.shape[0])
        self._batches = [probe(vocabulary), *batches]
        self._hidden: dict[int, Tensor | None] = {}
        self._values = 0
        if live.weights is None:
            self._run(report)
        else:
            self._walk(report)
        self._reader = LogitReader(live, lambda: self._ending(0))

    def at(self, number: int) -> Logits:
        """The logits of that batch."""
        with self._ending(number + 1):
            return self._reader.at(self._batches[number + 1])

    def let_go(self) -> None:
        """Forget the decoder layers' weights: they are not needed any more."""
        for layer in self.live.decoder_layers:
            layer.to("meta")

    def _ending(self, step: int) -> AbstractContextManager[None]:
        return behind_the_layers(self.live, self._hidden[step], self._values)

    def _run(self, report: Callable[[int], None]) -> None:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            self._hidden[len(self._hidden)] = hidden_of(output).cpu()
            self._values = len(output) if isinstance(output, tuple) else 0

        hook = self.live.decoder_layers[-1].register_forward_hook(keep)
        try:
            with torch.inference_mode():
                for step, ids in enumerate(self._batches):
                    self.live.hidden(ids)
                    report(step)
        finally:
            hook.remove()

    def _walk(self, report: Callable[[int], None]) -> None:
        walk = LayerWalk(self.live, self._batches)
        depth, last = len(self.live.decoder_layers), len(self._batches) - 1
        for turn in walk.turns():
            for _ in turn.run():
                pass
            report((turn.number + 1) * last // depth)
        self._hidden = {step: walk.hidden.read(step) for step in range(len(self._batches))}
        self._values = walk.hidden.values
