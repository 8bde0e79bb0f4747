"""Compare scores of the same models and tasks in two engines.

    python tools/engines/compare_scores.py TRANSFORMERS.json ENGINE.json

Both files are outputs of `statetrim evaluate`; the samples that both have are compared. Prints a
line per model and metric: both values and their difference with a 95% interval, paired by sample.
Perplexities are compared as mean log-likelihoods, in nats per sample. Exit code 1 if an interval
excludes 0.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from statetrim.artifacts.scores import Score, Scores, pair_samples
from statetrim.maths.paired import difference_interval


def first_samples(score: Score, count: int) -> Score:
    """The score of the first `count` samples."""
    weights = None if score.weights is None else score.weights[:count]
    return replace(score, samples=score.samples[:count], weights=weights)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("transformers", type=Path)
    parser.add_argument("engine", type=Path)
    options = parser.parse_args()
    reference, engine = Scores.load(options.transformers), Scores.load(options.engine)
    files = f"{options.engine.stem} against {options.transformers.stem}"
    print(f"# {files}, {reference.models[0]} and its cut")
    any_differs = False
    for model in engine.models:
        for task in engine.tasks:
            for metric in engine.metrics(task):
                before = reference.find(model, task, metric)
                after = engine.find(model, task, metric)
                count = min(len(before.samples), len(after.samples))
                before, after = first_samples(before, count), first_samples(after, count)
                difference = difference_interval([pair_samples(before, after)])
                differs = max(difference.low, -difference.high) > 0
                any_differs |= differs
                print(
                    f"{model}, {task} {metric}, {len(before.samples)} samples: {before.value:.4g} "
                    f"and {after.value:.4g}, {difference.estimate:+.4f} ({difference.low:+.4f} to "
                    f"{difference.high:+.4f}){', APART' if differs else ''}"
                )
    return int(any_differs)


if __name__ == "__main__":
    sys.exit(main())
