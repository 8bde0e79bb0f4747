"""Text and recall of a changed model, compared with the original on the same tokens."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from ..artifacts.record import as_fields, parse_record
from ..artifacts.samples import ChangedLayers, Samples
from ..errors import StatetrimError
from ..progress import OnProgress, counter
from ..runtime.live import LiveModel
from ..runtime.logits import FinalHiddenStates, compare_logits
from ..storage.json_file import read_json, write_json
from ..storage.text import Sequences
from ..tasks.recall import associations, recalled_share

LOADS = (16, 32, 63)  # key-value pairs per recall sequence
FIRST_RANGE = 16  # tokens read; every following range of positions ends at twice as many
SO_FAR = "so-far.json"
"""The file with the samples of a killed run."""


class Experiment:
    """Sequences to run every changed model on, and the original's final hidden states for them."""

    def __init__(self, live: LiveModel, data: Sequences, rows: int, batch_size: int) -> None:
        self.live, self.batch_size = live, batch_size
        self.text = data.batches(batch_size)
        vocabulary = int(live.lm_head.weight.shape[0])
        loads = [pairs for pairs in LOADS if pairs <= vocabulary // 4]
        if not loads:
            raise StatetrimError(f"a vocabulary of {vocabulary} is too small for recall sequences")
        self.recall: dict[int, tuple[Tensor, Tensor]] = {}  # pairs -> token ids, answer positions
        self.batches = [*self.text]
        for pairs in loads:
            self.recall[pairs] = associations(vocabulary, pairs, rows)
            self.batches += torch.split(self.recall[pairs][0], batch_size)
        self.original = FinalHiddenStates(live, self.batches)

    def all_samples(
        self,
        changes: Sequence[AbstractContextManager[None]],
        directory: Path | None,
        progress: OnProgress,
    ) -> list[Samples]:
        """Samples within each of `changes`, kept in `directory` so that a killed run resumes."""
        saved, so_far = directory and directory / SO_FAR, list[Samples]()
        if saved and saved.exists():
            stored = read_json(saved, ChangedLayers.MAX_BYTES).get("samples")
            so_far = parse_record(stored, list[Samples], saved)
        advance = counter(progress, len(changes), "settings")
        for number, changed in enumerate(changes):
            if number == len(so_far):
                so_far.append(self.samples(changed))
                if saved:
                    write_json(saved, as_fields({"samples": so_far}), indent=None)
            advance(1)
        return so_far

    @torch.inference_mode()
    def samples(self, changed: AbstractContextManager[None] | None = None) -> Samples:
        """Of the model within `changed`, or of the original, from its stored hidden states."""
        reading = self.original
        if changed is not None:
            with changed:
                reading = FinalHiddenStates(self.live, self.batches)
        nll: list[Tensor] = []
        kl: list[float] = []
        for number, batch in enumerate(self.text):
            after = reading.logits_at(number)
            before = after if changed is None else self.original.logits_at(number)
            both = compare_logits(before, after, batch)
            nll.append(-both.token_log_likelihood)
            kl += both.kl.tolist()
        shares: dict[int, list[float]] = {}
        number = len(self.text)
        for pairs, (ids, positions) in self.recall.items():
            shares[pairs] = []
            for batch_ids in torch.split(ids, self.batch_size):
                logits = reading.logits_at(number)(positions)
                shares[pairs] += recalled_share(batch_ids, positions, logits).tolist()
                number += 1
        by_token = torch.cat(nll)  # [windows, time - 1]
        ends = range_ends(by_token.shape[1])
        ranges = by_token.mean(0).tensor_split(ends[:-1])
        by_position = [float(part.mean()) for part in ranges]
        return Samples(by_token.mean(1).tolist(), kl, shares, by_position)


def range_ends(predictions: int) -> list[int]:
    """The ends of the ranges of positions of a window: 16, 32, 64 and so on, and the last."""
    ends, end = [], FIRST_RANGE
    while end < predictions:
        ends.append(end)
        end *= 2
    return [*ends, predictions]
