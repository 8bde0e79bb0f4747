"""NLL and KL on windows of text, recall on sequences, with intervals paired with the original."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1]))
from masking import Cut, Masked
from runner import Row as Row
from runner import Rows as Rows
from runner import study_parser as study_parser
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.tasks.recall import associations, recalled_share

WINDOW, BATCH = 256, 16
LOADS = (16, 32, 63)


class Judge:
    """Measures cuts on one set of windows and sequences."""

    def __init__(self, model: Masked, test: Path, tokenizer: Any, windows: int, rows: int) -> None:
        self.model = model
        ids = tokenizer(test.read_text(), add_special_tokens=False)["input_ids"]
        self.windows = torch.tensor(ids[: windows * WINDOW]).reshape(windows, WINDOW)
        vocabulary = model.live.vocab_size
        self.recall = {p: associations(vocabulary, p, rows, seed=0) for p in LOADS}
        with torch.inference_mode():
            self.log_p = [
                self._log_p(self._hidden(b)[:, :-1]) for b in torch.split(self.windows, BATCH)
            ]
        self.original = self.samples(None)

    @torch.inference_mode()
    def samples(self, cut: Cut | None) -> dict[str, Tensor]:
        """Float64 [windows] of NLL and KL, and [rows] of recall by number of pairs."""
        nll, kl = [], []
        by_metric = {}
        with self.model.cutting(cut):
            for batch, original_log_p in zip(
                torch.split(self.windows, BATCH), self.log_p, strict=True
            ):
                cut_log_p = self._log_p(self._hidden(batch)[:, :-1])
                nll.append(
                    functional.nll_loss(cut_log_p.mT, batch[:, 1:], reduction="none").mean(1)
                )
                kl.append((original_log_p.exp() * (original_log_p - cut_log_p)).sum(-1).mean(1))
            by_metric["nll"], by_metric["kl"] = torch.cat(nll).double(), torch.cat(kl).double()
            for pairs, (ids, positions) in self.recall.items():
                answers = [
                    recalled_share(
                        batch_ids, positions, self._logits(self._hidden(batch_ids)[:, positions])
                    )
                    for batch_ids in torch.split(ids, BATCH)
                ]
                by_metric[f"recall {pairs}"] = torch.cat(answers)
        return by_metric

    def figures(self, cut: Cut | None) -> dict[str, list[float]]:
        """Metric -> mean, and the 95 % bounds of the change from the original."""
        return self.figures_of(self.original if cut is None else self.samples(cut))

    def figures_of(self, samples: dict[str, Tensor]) -> dict[str, list[float]]:
        row = {}
        for name, after in samples.items():
            before = torch.zeros_like(after) if name == "kl" else self.original[name]
            change = difference_interval([Pairs(before, after)])
            low, high = round(change.low, 5), round(change.high, 5)
            row[name] = [round(float(after.mean()), 5), low, high]
        row["increase"] = [round(float((row["nll"][0]) - self.original["nll"].mean()), 5)]
        return row

    def _hidden(self, ids: Tensor) -> Tensor:
        return self.model.live.hidden_states(ids)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.live.module.lm_head(hidden)
        return logits

    def _log_p(self, hidden: Tensor) -> Tensor:
        return self._logits(hidden).float().log_softmax(-1)
