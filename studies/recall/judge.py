"""NLL and KL on windows of text, recall on sequences, with intervals paired with the original."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1]))
import statetrim as st
from runner import Row as Row
from runner import Rows as Rows
from runner import study_parser as study_parser
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live, load_tokenizer
from statetrim.tasks.recall import associations, recalled_share

WINDOW, BATCH = 256, 16
LOADS = (16, 32, 63)
SHAPES = {
    "1/2 keys": (32, 64),
    "1/2 balanced": (45, 45),
    "1/2 values": (64, 32),
    "1/4 keys": (16, 64),
    "1/4 balanced": (32, 32),
    "1/4 values": (64, 16),
}
"""Share of the bytes and what is cut -> shape of a head that has 64 x 64."""


class Judge:
    """Measures cuts on one set of windows and sequences."""

    def __init__(self, model: st.Checkpoint, test: Path, windows: int, rows: int) -> None:
        ids = load_tokenizer(model)(test.read_text(), add_special_tokens=False)["input_ids"]
        self.windows = torch.tensor(ids[: windows * WINDOW]).reshape(windows, WINDOW)
        live = load_live(model)
        self.recall = {p: associations(live.vocab_size, p, rows, seed=0) for p in LOADS}
        with torch.inference_mode():
            self.log_p = [_log_p(live, batch) for batch in torch.split(self.windows, BATCH)]
        self.original = self.samples(live)

    @torch.inference_mode()
    def samples(self, live: LiveModel) -> dict[str, Tensor]:
        """Float64 [windows] of NLL and KL, and [rows] of recall by number of pairs."""
        nll, kl = [], []
        for batch, expected in zip(torch.split(self.windows, BATCH), self.log_p, strict=True):
            log_p = _log_p(live, batch)
            nll.append(functional.nll_loss(log_p.mT, batch[:, 1:], reduction="none").mean(1))
            kl.append((expected.exp() * (expected - log_p)).sum(-1).mean(1))
        by_metric = {"nll": torch.cat(nll).double(), "kl": torch.cat(kl).double()}
        for pairs, (ids, positions) in self.recall.items():
            answers = []
            for batch in torch.split(ids, BATCH):
                logits = live.module.lm_head(live.hidden_states(batch)[:, positions])
                answers.append(recalled_share(batch, positions, logits))
            by_metric[f"recall {pairs}"] = torch.cat(answers)
        return by_metric

    def figures(self, samples: dict[str, Tensor]) -> Row:
        """Metric -> mean, and the 95 % bounds of the change from the original."""
        row: Row = {}
        for name, after in samples.items():
            before = torch.zeros_like(after) if name == "kl" else self.original[name]
            change = difference_interval([Pairs(before, after)])
            low, high = round(change.low, 5), round(change.high, 5)
            row[name] = [round(float(after.mean()), 5), low, high]
        row["increase"] = [round(float(row["nll"][0] - self.original["nll"].mean()), 5)]
        return row


def _log_p(live: LiveModel, ids: Tensor) -> Tensor:
    logits: Tensor = live.module.lm_head(live.hidden_states(ids)[:, :-1])
    return logits.float().log_softmax(-1)
