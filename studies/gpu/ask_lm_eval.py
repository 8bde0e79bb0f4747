"""One task of lm-eval that generates, GSM8K or a needle of RULER, on a model as statetrim loads it.

python studies/gpu/ask_lm_eval.py MODEL TASK -o OUT.json --limit 256 --batch-size 8

`lm_eval --model hf` does not open fla's models, pads prompts of models that do not mask padding,
and cuts a prompt to 2,048 tokens if the config names no length.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import statetrim as st
from statetrim.evaluation.harness import stock_tasks_directory, wrap_hf_model
from statetrim.runtime.loading import load_tokenizer

NEEDLE_LENGTH = 4096


def samples_by_metric(samples: list[dict[str, Any]]) -> dict[str, list[float]]:
    """'METRIC FILTER' -> a number per sample, in their order; RULER gives -1 for other lengths."""
    numbers: dict[str, list[float]] = {}
    for sample in sorted(samples, key=lambda sample: int(sample["doc_id"])):
        for metric in sample["metrics"]:
            name = metric if sample["filter"] == "none" else f"{metric} {sample['filter']}"
            numbers.setdefault(name, []).append(float(sample[metric]))
    return {name: values for name, values in numbers.items() if min(values) >= 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("task")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--device")
    options = parser.parse_args()
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder = "ruler" if options.task.startswith("niah") else options.task
    path = str(stock_tasks_directory() / folder)
    checkpoint = st.open(options.model)
    live = st.load(checkpoint, device=options.device)
    lm = wrap_hf_model(live, load_tokenizer(checkpoint), options.batch_size)
    metadata = {"tokenizer": str(checkpoint.path), "max_seq_lengths": [NEEDLE_LENGTH]}
    if folder == "ruler":
        lm._max_length = max(lm.max_length, NEEDLE_LENGTH + lm.max_gen_toks)
    results = lm_eval.simple_evaluate(
        model=lm, tasks=[options.task], limit=options.limit, bootstrap_iters=0,
        task_manager=TaskManager(include_path=path, include_defaults=False, metadata=metadata),
    )  # fmt: skip
    samples = samples_by_metric(results["samples"][options.task])
    partial = options.output.with_name(f"{options.output.name}.partial")
    partial.write_text(json.dumps({"task": options.task, "samples": samples}))
    os.replace(partial, options.output)


if __name__ == "__main__":
    main()
