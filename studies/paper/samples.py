"""Shared by the scripts of this folder: their arguments, and the scoring of a model.

A row holds all samples (NLL of each window, recall of each sequence), which are the same for all
models, so that any two rows can be compared in pairs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1]))
import statetrim as st
from evaluator import quiet
from runner import Row as Row
from runner import Rows as Rows
from runner import study_parser
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live, load_tokenizer
from statetrim.tasks.recall import associations, recalled_share

PAIRS = (16, 32, 63)
BATCH = 8


class ModelScorer:
    """Scores models: NLL on windows of a text, each from an empty state, and recall (MQAR)."""

    def __init__(self, model: st.Checkpoint, options: argparse.Namespace) -> None:
        ids = load_tokenizer(model)(options.test.read_text(), add_special_tokens=False)["input_ids"]
        count = min(options.windows, len(ids) // options.length)
        self.windows = torch.tensor(ids[: count * options.length]).view(count, -1)
        self.sequences = options.sequences

    def score_checkpoint(self, model: st.Checkpoint) -> Row:
        return self.score(load_live(model))

    @torch.inference_mode()
    def score(self, live: LiveModel) -> Row:
        nll = []
        for ids in torch.split(self.windows, BATCH):
            logits = _logits(live, live.hidden_states(ids)[:, :-1])
            target = ids[:, 1:].to(logits.device)
            nll.append(functional.cross_entropy(logits.mT, target, reduction="none").mean(1))
        row: Row = {"nll": _rounded(torch.cat(nll))}
        for pairs in PAIRS if live.vocab_size >= 4 * max(PAIRS) else ():
            ids, answer_positions = associations(live.vocab_size, pairs, self.sequences, seed=0)
            recall = [
                recalled_share(
                    batch,
                    answer_positions,
                    _logits(live, live.hidden_states(batch)[:, answer_positions]),
                )
                for batch in torch.split(ids, BATCH)
            ]
            row[f"recall {pairs}"] = _rounded(torch.cat(recall))
        return row


def _logits(live: LiveModel, hidden: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = live.module.lm_head(hidden)
    return logits.float()


def _rounded(samples: torch.Tensor) -> list[float]:
    return [round(float(value), 5) for value in samples]


def parser(docstring: str | None, results: str, samples_help: str) -> argparse.ArgumentParser:
    """The arguments that all scripts have; `samples_help` is the help of `--samples`."""
    options = study_parser(
        docstring, "test", results=f"results/paper/{results}", name=None, windows=48, length=256,
        sequences=16, tokens=2**15, calibration_length=512,
    )  # fmt: skip
    options.add_argument("model", help="a checkpoint's directory or a hub id")
    options.add_argument("--text", required=True, help="to calibrate and recover: file or dataset")
    options.add_argument("--samples", type=int, default=3, help=samples_help)
    return options


def parsed(arguments: argparse.ArgumentParser) -> argparse.Namespace:
    options = arguments.parse_args()
    options.name = options.name or Path(options.model).resolve().name
    quiet()
    return options


def statistics(
    model: st.Checkpoint, options: argparse.Namespace, sample: int, methods: list[str]
) -> st.Statistics:
    """Statistics of text without recall sequences; each sample reads other tokens."""
    return st.calibrate(
        model,
        options.text,
        tokens=options.tokens,
        length=options.calibration_length,
        skip=sample * options.tokens,
        methods=methods,
        recall=0.0,
        progress=False,
    )
