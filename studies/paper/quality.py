"""What a cut costs before and after recovery, by method and width.

Tables `tab:pre_rft_50_gated_only`, `tab:full_results_gdn_13B_paper`, `tab:unified_summary_50`,
`tab:zs-*` and `tab:recall-*`; with `--scores` the ablation `tab:ablation_kq_targets`.

    python studies/paper/quality.py MODEL --text train.jsonl --test wiki.valid.raw --work WORK \\
        [--stages cut recovered] [--scores qk q k] [--tasks piqa fda --data DATA]

Every cut is written below WORK and kept, for the other scripts. What is random is drawn `--samples`
times: the channels of `rand`, the calibration text of the other methods, LoRA's initial values.
Recovery is `statetrim recover` with the paper's recipe scaled to `--recovery-tokens`; the control
is the original after the same recovery.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import statetrim as st
from samples import ModelScorer, Row, Rows, parsed, parser, statistics

METHODS = ("rand", "l1", "s_wanda", "grad", "drrqr")
CALIBRATED = ("s_wanda", "grad", "drrqr")
KEEP = (0.25, 0.5, 0.6, 0.7)  # 75, 50, 40 and 30 % of the channels go


def cases(options: argparse.Namespace) -> list[Row]:
    """The keys of the rows to measure: cuts first, then the control and the recovered cuts."""
    rows: list[Row] = []
    for stage in options.stages:
        recipe: Row = {"model": options.name, "stage": stage}
        if stage == "recovered":
            recipe |= {"tokens": options.recovery_tokens, "rate": options.learning_rate}
        for sample in range(options.samples):
            if stage == "recovered" or sample == 0:
                rows.append({**recipe, "method": "none", "keep": 1.0, "sample": sample})
            for score in options.scores:
                for keep in options.keep:
                    for method in options.methods:
                        drawn = stage == "recovered" or method != "l1"
                        if (sample == 0 or drawn) and (score == "qk" or method != "rand"):
                            selection = {"method": method, "score": score, "keep": keep}
                            rows.append({**recipe, **selection, "sample": sample})
    return rows


class CheckpointCache:
    """Makes the checkpoints of one model below `options.work`; existing ones are reused."""

    def __init__(self, model: st.Checkpoint, options: argparse.Namespace) -> None:
        self.model, self.options = model, options
        self.sums: dict[int, st.Statistics] = {}

    def cut(self, row: Row) -> st.Checkpoint:
        """The cut of a row. Recovery samples share the cut of sample 0, so that only the training
        differs, except with `rand`."""
        recovered = row["stage"] == "recovered" and row["method"] != "rand"
        sample = 0 if recovered or row["method"] == "l1" else row["sample"]
        name = f"{row['model']}-{row['method']}-{row['score']}-{row['keep']}-{sample}"
        out: Path = self.options.work / name
        if out.exists():
            return st.open(out)
        needs = row["method"] in CALIBRATED
        if needs and sample not in self.sums:
            self.sums[sample] = statistics(self.model, self.options, sample, list(CALIBRATED))
        keys = round(row["keep"] * self.model.geometry.head_k_dim)  # a part would be rounded up
        plan = st.select(
            self.model,
            row["method"],
            f"{keys}x100%",
            seed=sample,
            statistics=self.sums[sample] if needs else None,
            progress=False,
            method_options=None if row["method"] == "rand" else {"score": row["score"]},
        )
        return st.prune(self.model, plan, out)

    def recovered(self, row: Row) -> st.Checkpoint:
        is_control = row["method"] == "none"
        small = self.model if is_control else self.cut(row)
        name = f"{row['model']}-control" if is_control else small.path.name
        recipe = f"{row['tokens']}-{row['rate']:g}-{row['sample']}"
        return st.recover(
            small,
            teacher=self.model,
            text=self.options.text,
            tokens=row["tokens"],
            length=self.options.recovery_length,
            skip=self.options.recovery_skip,
            learning_rate=row["rate"],
            control=is_control,
            seed=row["sample"],
            save_every=4,
            out=self.options.work / f"{name}-recovered-{recipe}",
            progress=False,
        )


def tasks(model: st.Checkpoint, options: argparse.Namespace) -> Row:
    """Scores per sample of the tasks in `options.tasks`, if any."""
    if not options.tasks:
        return {}
    scores = st.evaluate(
        [],
        baseline=model,  # rows are compared later, pair by pair
        tasks=options.tasks,
        data=options.data,
        limit=options.limit,
        out=options.work / f"{model.path.name}-{'-'.join(options.tasks)}.json",
        progress=False,
    )
    return {
        f"{score.task} {score.metric}": [round(value, 4) for value in score.samples]
        for score in scores.scores
    }


def main() -> None:
    arguments = parser(__doc__, "quality.jsonl", "of whatever is drawn")
    arguments.add_argument("--work", type=Path, required=True, help="where checkpoints are kept")
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--keep", nargs="+", type=float, default=list(KEEP))
    arguments.add_argument("--scores", nargs="+", choices=["qk", "q", "k"], default=["qk"])
    stages = ["cut", "recovered"]
    arguments.add_argument("--stages", nargs="+", choices=stages, default=stages)
    arguments.add_argument("--recovery-tokens", type=int, default=12 * 16 * 256)
    arguments.add_argument("--recovery-length", type=int, default=256)
    seen = 3 * 2**15
    arguments.add_argument("--recovery-skip", type=int, default=seen, help="calibration's tokens")
    arguments.add_argument("--learning-rate", type=float, default=2e-3)
    arguments.add_argument("--tasks", nargs="*", default=[], help="of `statetrim evaluate`")
    arguments.add_argument("--data", type=Path, help="their files")
    arguments.add_argument("--limit", type=int, help="samples of each task")
    options = parsed(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    rows, model = Rows(options.results), st.open(options.model)
    cache, scorer = CheckpointCache(model, options), ModelScorer(model, options)
    scores_by_digest: dict[Any, Row] = {}  # by digest: the same channels are measured once
    for row in rows.missing(cases(options)):
        if row["stage"] == "recovered":
            checkpoint = cache.recovered(row)
        else:
            checkpoint = model if row["method"] == "none" else cache.cut(row)
        if checkpoint.digest not in scores_by_digest:
            scores_by_digest[checkpoint.digest] = scorer.score_checkpoint(checkpoint) | tasks(
                checkpoint, options
            )
        rows.add(row | scores_by_digest[checkpoint.digest])


if __name__ == "__main__":
    main()
