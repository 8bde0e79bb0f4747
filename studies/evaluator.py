"""Models on windows of a text and on recall sequences, in pairs with the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.utils import logging as transformers_logging

import mqar
import statetrim as st
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.loading import load_tokenizer

WINDOW, BATCH = 256, 8


class Evaluator:
    """Measures models and the original on the same windows, each from an empty state, and on the
    same recall sequences (mqar.py). Logits must be `lm_head(hidden)`."""

    def __init__(
        self, model: st.Checkpoint, test: Path, windows: int, pairs: list[int], rows: int = 32,
        seed: int = 1234, hops: int = 1,
    ) -> None:  # fmt: skip
        ids = load_tokenizer(model)(test.read_text(), add_special_tokens=False)["input_ids"]
        whole = torch.tensor(ids[: len(ids) // WINDOW * WINDOW]).reshape(-1, WINDOW)
        self.batches = torch.split(whole[:windows], BATCH)
        self.pairs, self.rows, self.seed, self.hops = pairs, rows, seed, hops
        self.original = st.load(model)
        with torch.inference_mode():
            self.hidden = [_hidden(self.original, batch) for batch in self.batches]
        self.original_samples = self.samples(self.original)

    @torch.inference_mode()
    def samples(self, live: Any) -> dict[str, Tensor]:
        """Float64 [windows] of NLL and KL, and [rows] of recall by the number of pairs and of its
        mean."""
        nll, kl = [], []
        for batch, original in zip(self.batches, self.hidden, strict=True):
            cut_log_p = _log_p(live, original if live is self.original else _hidden(live, batch))
            original_log_p = _log_p(self.original, original)
            nll.append(functional.nll_loss(cut_log_p.mT, batch[:, 1:], reduction="none").mean(1))
            kl.append((original_log_p.exp() * (original_log_p - cut_log_p)).sum(-1).mean(1))
        samples = {"nll": torch.cat(nll).double(), "kl": torch.cat(kl).double()}
        recall = [mqar.accuracies(live, n, self.rows, self.seed, self.hops) for n in self.pairs]
        samples |= {f"recall {n}": accuracy for n, accuracy in zip(self.pairs, recall, strict=True)}
        return samples | ({"recall": torch.stack(recall).mean(0)} if recall else {})

    def figures(self, live: Any) -> dict[str, list[float]]:
        """Metric -> mean, change from the original, and both ends of the change's interval."""
        samples = self.original_samples if live is self.original else self.samples(live)
        no_kl = {"kl": torch.zeros_like(samples["kl"])}
        return changes(self.original_samples | no_kl, samples)


def changes(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, list[float]]:
    """Metric -> mean after, change, and both ends of the change's interval."""
    figures = {}
    for name, samples in after.items():
        change = difference_interval([Pairs(before[name], samples)])
        numbers = (float(samples.mean()), change.estimate, change.low, change.high)
        figures[name] = [round(number, 5) for number in numbers]
    return figures


def quiet() -> None:
    """Switch off transformers' messages, and use one thread: the machine may be shared."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)


def _hidden(live: Any, ids: Tensor) -> Tensor:
    states: Tensor = live.model(input_ids=ids, use_cache=False).last_hidden_state
    return states[:, :-1]


def _log_p(live: Any, states: Tensor) -> Tensor:
    logits: Tensor = live.lm_head(states)
    return logits.float().log_softmax(-1)
