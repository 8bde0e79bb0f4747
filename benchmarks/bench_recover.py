"""Time of a recovery step relative to its bare computation, on one CPU core, in one process.

    python benchmarks/bench_recover.py MODEL --text train.jsonl

Bare: the stock student's forward, backward and AdamW step with the same trainable tensors, plus the
stock teacher's forward, on the same batches. CPU seconds of this process, so that other load does
not count; medians over the steps without the first two.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

import statetrim as st
from statetrim.recovery.adapters import attach_adapters
from statetrim.recovery.options import RecoverOptions
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load_live

WARM_UP = 2


def recovery_step_seconds(
    small: st.Checkpoint, model: st.Checkpoint, data: Any, batch: int
) -> list[float]:
    """CPU seconds from one step's end to the next."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        st.recover(
            small,
            teacher=model,
            text=data,
            batch_size=batch,
            out=Path(directory) / "out",
            save_every=10**6,
            progress=lambda _: ends.append(time.process_time()),
        )
    return [after - before for before, after in itertools.pairwise(ends)][WARM_UP:]


def bare_step_seconds(
    small: st.Checkpoint, model: st.Checkpoint, data: Any, batch: int
) -> tuple[list[float], list[float]]:
    """CPU seconds of the student's part and of the teacher's."""
    live, teacher = load_live(small), st.load(model)
    attach_adapters(live, RecoverOptions())
    student = live.module
    student.train()
    trained = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    student_seconds, teacher_seconds = [], []
    for ids in data.batches(batch):
        start = time.process_time()
        student(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        middle = time.process_time()
        with torch.no_grad():
            teacher(input_ids=ids, use_cache=False)
        teacher_seconds.append(time.process_time() - middle)
        student_seconds.append(middle - start)
    return student_seconds[WARM_UP:], teacher_seconds[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = st.open(options.model)
    tokens = options.steps * options.batch * options.length
    data = Corpus(options.text, model).read(tokens=tokens, length=options.length)
    with tempfile.TemporaryDirectory() as directory:
        small = st.prune(model, st.select(model, "l1", "50%x100%"), out=Path(directory) / "small")
        recovery = median(recovery_step_seconds(small, model, data, options.batch))
        student, teacher = map(median, bare_step_seconds(small, model, data, options.batch))
    print(
        f"recovery {recovery:.3f} s a step; bare student {student:.3f} s, teacher {teacher:.3f} s"
    )
    print(f"ratio {recovery / (student + teacher):.3f}")


if __name__ == "__main__":
    main()
