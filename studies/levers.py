"""Which lever costs least at equal bytes? The cuts of `trim`'s goals, measured once each.

    python studies/levers.py run MODEL --text train.jsonl --work FOLDER [--by-layer]
    python studies/levers.py page

For each share of the float32 bytes and each engine it lists what `trim --to SHARE --for ENGINE`
compares, predicts all of it together, and cuts, refits and measures every candidate with the text
and recall sequences on which `trim` decides. The page replays two decisions on these figures: that
of `trim`, and that among shapes alone, in float32.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path

import torch
from scipy.stats import spearmanr

import statetrim as st
from runner import Row, Rows, fill, read_rows, start, study_parser, table
from statetrim.analysis.predict import predict
from statetrim.artifacts.decision import MeasuredShape
from statetrim.cut.geometry import Target
from statetrim.cut.request import parse_request
from statetrim.evaluation.runner import OriginalResults
from statetrim.judging.losses import task_losses
from statetrim.judging.recommendation import judge_point
from statetrim.pipelines.by_layer import allocate_for_engine
from statetrim.pipelines.job import Job
from statetrim.pipelines.options import TrimOptions
from statetrim.pipelines.shape_choice import (
    MEASURED,
    prediction_sources,
    prediction_tokens,
    shortlist,
)
from statetrim.pipelines.stages import CHOICE_SEED
from statetrim.serving.target import resolve_target

FLAGS = "no cut"
LOSSES = ("perplexity", "recall")
SKIPPED = 2**17  # tokens of text between seeds


class Candidates:
    """What `trim` compares on one model: a goal for each share and engine."""

    def __init__(self, options: argparse.Namespace, model: st.Checkpoint) -> None:
        self.options, self.model = options, model
        self.name = options.name or model.path.resolve().name
        self.goals: list[Row] = []
        self.cuts: dict[tuple[str, str], Target] = {}  # name, dtype of the state
        self.jobs: list[Job] = []
        for share in options.shares:
            for engine in options.engines:
                self._add_goal(share, engine)

    def _add_goal(self, share: float, engine: str) -> None:
        settings = TrimOptions(
            to=share,
            for_=None if engine == "none" else engine,
            text=self.options.text,
            tokens=self.options.tokens,
            limit=self.options.limit,
            seed=self.options.seed,
        )
        job = Job.from_options(self.model, settings)
        self.jobs.append(job)
        plain = job.in_default_dtype() if job.flag_dtype else job
        shapes = [cut for cut in (*plain.candidates, plain.target) if "head" not in cut.axes]
        goal: Row = {"share": share, "engine": engine, "dtype": job.state_dtype}
        goal["candidates"] = [str(cut) for cut in job.candidates or [job.target]]
        goal["shapes"] = [str(cut) for cut in dict.fromkeys(shapes)]
        goal["flags"] = job.compares_16_bit_state
        goal["heads_share_keys"] = self.model.geometry.group > 1
        for cut in job.candidates or [job.target]:
            self.cuts[str(cut), job.state_dtype] = cut
        for cut in shapes:
            self.cuts[str(cut), "float32"] = cut
        if self.options.by_layer and engine == "vllm":
            by_layer = self._by_layer(job, share)
            goal["by_layer"] = str(by_layer)
            self.cuts[str(by_layer), job.state_dtype] = by_layer
        self.goals.append(goal)

    @cached_property
    def sensitivity(self) -> st.Sensitivity:
        """Losses of each layer cut alone, on the text that `trim` takes for them."""
        options = self.options
        path = options.work / f"{self.name}-{options.seed}-sensitivity.json"
        if path.exists():
            return st.Sensitivity.load(path)
        return st.sensitivity(
            self.model,
            options.text,
            calibration_tokens=self.jobs[0].tokens,
            skip=options.seed * SKIPPED,
            progress=False,
            out=path,
        )

    def _by_layer(self, job: Job, share: float) -> Target:
        share *= 2 if job.flag_dtype else 1
        engine, dtype = job.options.engine, job.flag_dtype
        allocation = allocate_for_engine(self.model, self.sensitivity, min(share, 1), engine, dtype)
        return resolve_target(self.model, parse_request(str(allocation)))


class Measurement:
    """Cuts of one model, refitted and measured on slices of its text; calibrates once."""

    def __init__(self, candidates: Candidates) -> None:
        self.model, options = candidates.model, candidates.options
        self.job = max(candidates.jobs, key=lambda job: job.shape_tokens)
        self.folder = options.work / f"{candidates.name}-{options.seed}"
        self.folder.mkdir(parents=True, exist_ok=True)
        skipped, tokens = options.seed * SKIPPED, self.job.tokens
        _, self.text, self.choice = self.job.corpus.divide(skipped, tokens, self.job.shape_tokens)
        self.calibration = {
            "text": self.text, "tokens": tokens, "seed": options.seed,
            "recall": self.job.options.recall, "progress": False,
        }  # fmt: skip
        methods = list(dict.fromkeys(m for job in candidates.jobs for m in job.calibrated_methods))
        path = self.folder / "statistics.safetensors"
        if not path.exists():
            st.calibrate(self.model, methods=methods, out=path, **self.calibration)
        self.statistics = st.Statistics.load(path)
        self.original = OriginalResults(self.model, self.job.options.placement)
        self._refitted = ""  # the cut that is in the folder
        self.plans = {
            name: st.select(self.model, to=name, statistics=self.statistics, progress=False)
            for name in dict.fromkeys(name for name, _ in candidates.cuts)
        }

    def predicted(self) -> dict[str, float]:
        """The predicted cost of every cut with one shape for all layers."""
        length, fitted = self.job.options.length, prediction_tokens(self.job)
        prediction = predict(
            self.model,
            {name: plan for name, plan in self.plans.items() if "=" not in name},
            prediction_sources(self.text, fitted, length, seed=1),
            prediction_sources(self.choice, self.job.shape_tokens, length, seed=2),
        )
        return {name: round(prediction.cost(name), 6) for name in prediction.errors}

    def figures(self, name: str, dtype: str, share: float) -> Row:
        """Losses of a cut with its state in `dtype`, and its place in `trim`'s order."""
        scores = st.evaluate(
            [self.model if name == FLAGS else self.refitted(name)],
            baseline=self.model,
            text=self.choice,
            limit=self.job.shape_samples,
            control=False,
            recall_seed=CHOICE_SEED,
            state_dtype=dtype,
            state_piece=1 if name == FLAGS else 64,
            original=self.original,
            progress=False,
        )
        whole = self.model.geometry.widest
        before, after = (MeasuredShape(whole, "", int(part * 2**20)) for part in (1, share))
        row: Row = {"rank": list(judge_point(before, after, scores).rank)}
        for loss in task_losses(scores, scores.models[-1]):
            interval = (loss.loss.estimate, loss.loss.low, loss.loss.high)
            row[loss.group] = [round(number, 3) for number in interval]
        return row

    def refitted(self, name: str) -> st.Checkpoint:
        """The cut with refitted output projections; the last one is removed."""
        folder = self.folder / "cut"
        if self._refitted == name:
            return st.open(folder / "refitted")
        shutil.rmtree(folder, ignore_errors=True)
        cut = st.prune(self.model, self.plans[name], folder / "cut", uneven=True, progress=False)
        sums = self.statistics
        if tuple(self.plans[name].axes) != ("head",):
            sums = st.calibrate(cut, original=self.model, **self.calibration)
        refitted = st.refit(cut, sums, out=folder / "refitted", progress=False)
        self._refitted = name
        return refitted


def run() -> None:
    parser = study_parser(
        __doc__, "model", "text", "work", results="results/levers.jsonl", name=None,
        shares=[0.5, 0.25, 0.125], engines=["vllm", "llamacpp", "none"], tokens="32k",
        limit=32, seed=0,
    )  # fmt: skip
    parser.add_argument("--by-layer", action="store_true", help="measure widths by layer too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    candidates = Candidates(options, st.open(options.model))
    results, case = Rows(options.results), {"model": candidates.name, "seed": options.seed}
    measurement = Measurement(candidates)
    for goal in candidates.goals:
        if not results.has(case | {"share": goal["share"], "engine": goal["engine"]}):
            results.add(case | goal)

    def measure(row: Row) -> Row:
        name, dtype = row["cut"], row["dtype"]
        share = 1.0 if name == FLAGS else candidates.cuts[name, dtype].share
        share *= 0.5 if dtype == "bfloat16" else 1
        return {"bytes": round(share, 4)} | measurement.figures(name, dtype, share)

    predicted = {"predicted": [name for name in measurement.plans if "=" not in name]}
    if not results.has(case | predicted):
        results.add(case | predicted | {"costs": measurement.predicted()})
    costs: dict[str, float] = {}
    for row in results.rows:
        if case.items() <= row.items():
            costs |= row.get("costs", {})
    cases = [
        case | {"cut": name, "dtype": dtype}
        for name, dtype in dict.fromkeys([*decisive(candidates.goals, costs), *candidates.cuts])
    ]
    results.measure_missing(cases, measure)


def decisive(goals: list[Row], costs: dict[str, float]) -> Iterator[tuple[str, str]]:
    """What the decisions need, and so is measured first: name, dtype of the state."""
    for goal in goals:
        yield from ((name, goal["dtype"]) for name in cheapest(goal, goal["candidates"], costs))
        yield from ((name, "float32") for name in cheapest(goal, goal["shapes"], costs))
        if "by_layer" in goal:
            yield goal["by_layer"], goal["dtype"]
        if goal["flags"]:
            yield FLAGS, "bfloat16"


def cheapest(goal: Row, names: list[str], costs: dict[str, float]) -> list[str]:
    """Those of `names` that `trim` measures."""
    ranked = sorted(names, key=costs.__getitem__)
    with_heads = [name for name in ranked if "heads" in name and goal["heads_share_keys"]]
    return shortlist(ranked, with_heads)


class Replay:
    """The figures of one model and seed, and what `trim` would choose by them."""

    def __init__(self, rows: list[Row]) -> None:
        self.goals = [row for row in rows if "engine" in row]
        self.costs: dict[str, float] = {}
        for row in rows:
            self.costs |= row.get("costs", {})
        self.measured = {(row["cut"], row["dtype"]): row for row in rows if "cut" in row}

    @property
    def decided(self) -> list[Row]:
        """The goals of which everything that decides is measured."""
        measured = self.measured.keys()
        return [goal for goal in self.goals if set(decisive([goal], self.costs)) <= measured]

    def three(self, goal: Row, names: list[str], dtype: str) -> list[Row]:
        """The three of these cuts that `trim` measures."""
        return [self.measured[name, dtype] for name in cheapest(goal, names, self.costs)]

    def choice(self, goal: Row, *, by_layer: bool = False) -> Row:
        """The flag if it is enough, else the best of the three, and of widths by layer."""
        flags = self.measured.get((FLAGS, "bfloat16"))
        if flags and goal["flags"] and goal["dtype"] == "float32" and not flags["rank"][0]:
            return flags
        cuts = self.three(goal, goal["candidates"], goal["dtype"])
        if by_layer:
            cuts.append(self.measured[goal["by_layer"], goal["dtype"]])
        return best(cuts)

    def hits(self, *, heads: bool) -> list[str]:
        """Of the goals with more than three cuts, all measured: how often the best of all is one of
        the three with the lowest predicted cost, and one of those that `trim` measures."""
        by_cost, by_rule = [], []
        for goal in self.goals:
            names = goal["candidates"] if heads else goal["shapes"]
            dtype = goal["dtype"] if heads else "float32"
            if len(names) > MEASURED and {(name, dtype) for name in names} <= self.measured.keys():
                first = best([self.measured[name, dtype] for name in names])["cut"]
                by_cost.append(first in sorted(names, key=self.costs.__getitem__)[:MEASURED])
                by_rule.append(first in cheapest(goal, names, self.costs))
        return [f"{sum(hits)} of {len(hits)}" for hits in (by_cost, by_rule)]

    def correlations(self, *, heads: bool) -> list[float]:
        """Spearman's, of the predicted cost with the losses of perplexity and of recall."""
        rows = [
            row
            for (name, dtype), row in self.measured.items()
            if dtype == "float32" and name in self.costs and (heads or "heads" not in name)
        ]
        costs = [self.costs[row["cut"]] for row in rows]
        losses = ([row[group][0] for row in rows] for group in LOSSES)
        return [float(spearmanr(costs, each).statistic) for each in losses]


def best(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: row["rank"])


def cells(row: Row) -> list[str]:
    """The cut, what it loses, and whether that is within the limits."""
    suffix = " in bfloat16" if row["dtype"] == "bfloat16" else ""
    name = "by layer" if "=" in row["cut"] else row["cut"]
    texts = [f"{row[group][0]:.1f} ± {(row[group][2] - row[group][1]) / 2:.1f}" for group in LOSSES]
    return [f"{name}{suffix}", *texts]


def page(results: Path) -> None:
    def case(row: Row) -> tuple[str, int]:
        return row["model"], row["seed"]

    decisions, predictions, unchanged = [], [], 0
    rows = sorted(read_rows(results / "levers.jsonl"), key=case)
    for (model, seed), group in groupby(rows, case):
        replay = Replay(list(group))
        for goal in replay.decided:
            start = [model, str(seed), f"{goal['share']:g}", goal["engine"]]
            alone = cells(best(replay.three(goal, goal["shapes"], "float32")))
            now = cells(replay.choice(goal))
            by_layer = cells(replay.choice(goal, by_layer=True)) if "by_layer" in goal else now
            unchanged += now == by_layer == alone
            if now != alone:
                decisions.append([*start, *alone, *now])
            if by_layer != now:
                start[3] += ", by layer"
                decisions.append([*start, *alone, *by_layer])
        for heads in (False, True):
            numbers = [f"{number:+.2f}" for number in replay.correlations(heads=heads)]
            kind, hits = "all" if heads else "shapes", replay.hits(heads=heads)
            if "+nan" not in numbers:  # with at least two cuts
                predictions.append([model, str(seed), kind, *numbers, *hits])
    losses = ["perplexity, %", "recall, points"]
    header = ["model", "seed", "bytes", "engine", "shapes alone", *losses, "now", *losses]
    correlation = ["cuts", "rank correlation, perplexity", "recall"]
    correlation += ["best is one of the three cheapest", "of the three measured"]
    fill(results / "levers.md", {
        "decisions": f"{table(header, decisions, left=5)}\n\n{unchanged} other cases are the same.",
        "predictions": table(["model", "seed", *correlation], predictions, left=3),
    })  # fmt: skip


if __name__ == "__main__":
    start(page, run=run)
