"""Final hidden states of a model, kept in main memory so that its layers can be unloaded.

Final norm and head turn them into logits when needed. So two models are compared on every token,
though only one is in memory at a time.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from .live import LiveModel
from .logits import LogitReader, LogitsAt, probe_ids
from .mixers import output_hidden_states
from .sequential import LayerWalk, from_final_hidden


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
        self._batches = [probe_ids(vocab_size), *batches]
        self._final_hidden: dict[int, Tensor | None] = {}
        self._tuple_size = 0
        if live.weights is None:
            self._run_in_memory(report)
        else:
            self._run_layerwise(report)
        self._reader = LogitReader(live, lambda: self._from_final_hidden(0))

    def logits_at(self, batch: int) -> LogitsAt:
        """A function from positions [n] to the float32 logits [rows, n, vocabulary] of the batch
        with this index."""
        with self._from_final_hidden(batch + 1):
            return self._reader.forward(self._batches[batch + 1])

    def unload_layers(self) -> None:
        """Free the memory of the decoder layers' weights, for good: logits of these batches do not
        need them, but the model must not run other text afterwards."""
        for layer in self.live.decoder_layers:
            layer.to("meta")

    def _from_final_hidden(self, step: int) -> AbstractContextManager[None]:
        """Within, a forward pass starts from the stored states of a batch: 0 is the probe, `step`
        the batch `step - 1`."""
        return from_final_hidden(self.live, self._final_hidden[step], self._tuple_size)

    def _run_in_memory(self, report: Callable[[int], None]) -> None:
        """Run all batches, and keep the last layer's output of each in main memory."""

        def store_output(module: nn.Module, args: Any, output: Any) -> None:
            self._final_hidden[len(self._final_hidden)] = output_hidden_states(output).cpu()
            self._tuple_size = len(output) if isinstance(output, tuple) else 0

        hook = self.live.decoder_layers[-1].register_forward_hook(store_output)
        try:
            with torch.inference_mode():
                for step, ids in enumerate(self._batches):
                    self.live.hidden_states(ids)
                    report(step)
        finally:
            hook.remove()

    def _run_layerwise(self, report: Callable[[int], None]) -> None:
        """Run all batches layer by layer, and keep the last layer's outputs in main memory;
        `report` gets the batches that the layers done so far amount to."""
        walk = LayerWalk(self.live, self._batches)
        depth, last_batch = len(self.live.decoder_layers), len(self._batches) - 1
        for layer_pass in walk.layers():
            list(layer_pass.run())
            report((layer_pass.number + 1) * last_batch // depth)
        for step in range(len(self._batches)):
            self._final_hidden[step] = walk.hidden_store.read(step)
        self._tuple_size = walk.hidden_store.tuple_size
