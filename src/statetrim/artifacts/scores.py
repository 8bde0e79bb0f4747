"""Scores: metrics of models on tasks with their samples, so that any two can be compared later."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import Table, list_text, shorten
from ..maths.paired import Pairs
from ..maths.units import MIB
from ..tasks import setting_text
from ..tasks.unit import SHARE, UNITS
from .record import Artifact, as_fields, header


@dataclass(frozen=True)
class Score:
    """One metric of one model on one task.

    `samples` are shares or nats, whose mean is the value, or log-likelihoods of documents, from
    which the value is the perplexity per unit of `weights` (words; 1 per sample by default).
    """

    model: str
    task: str
    metric: str
    unit: str  # the name of one of UNITS
    higher_is_better: bool
    samples: list[float]
    weights: list[float] | None = None
    chance: float | None = None  # share of right answers by guessing, if lm-eval's task says it

    def __repr__(self) -> str:
        subject = f"{shorten(self.model)} on {shorten(self.task)}, {shorten(self.metric)}"
        value = UNITS[self.unit].text(self.value) if self.samples else "none"
        return f"<Score of {subject}: {value}, {len(self.samples)} samples>"

    @property
    def value(self) -> float:
        """The metric over all samples."""
        return UNITS[self.unit].value(self.samples, self.weights)

    def validate(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}")
        if not self.samples:
            raise ValueError("samples is empty")
        if self.unit == SHARE.name and not all(0 <= sample <= 1 for sample in self.samples):
            raise ValueError("samples must be shares, from 0 to 1")
        if self.chance is not None and not 0 <= self.chance <= 1:
            raise ValueError("chance must be from 0 to 1")
        if self.weights is None:
            return
        if len(self.weights) != len(self.samples):
            raise ValueError("weights and samples differ in number")
        if min(self.weights) < 0 or sum(self.weights) <= 0:
            raise ValueError("weights must be positive")


@dataclass(frozen=True)
class Scores(Artifact):
    """All scores of a run; the baseline is the first of `models`."""

    KIND = "scores"
    MAX_BYTES = 1024 * MIB
    INDENT = None

    models: list[str]
    scores: list[Score]
    lineage: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject duplicates: a caller could pick the better one."""
        if len(self._by_key) < len(self.scores) or len({*self.models}) < len(self.models):
            raise StatetrimError("the scores hold a model, or a metric of a model, twice")

    def __repr__(self) -> str:
        return f"<Scores of {list_text(self.models)} on {list_text(self.tasks, 8)}>"

    def table(self, find: "Callable[[str, str, str], Score] | None" = None) -> Table:
        """A row per metric, a column per model; empty cells where a model has no such score.

        `find` gives the score of a model, task and metric; by default the stored one.
        """
        rows = []
        for task in self.tasks:
            for number, metric in enumerate(self.metrics(task)):
                values, counts = [], []
                for model in self.models:
                    try:
                        score = (find or self.find)(model, task, metric)
                        values.append(UNITS[score.unit].text(score.value))
                        counts.append(str(len(score.samples)))
                    except StatetrimError:  # there is none
                        values.append("")
                        counts.append("")
                name = setting_text(task, metric)
                rows.append(("" if number else task, name, counts[0], *values))
        return Table("Scores", ("task", "metric", "samples", *self.models), rows)

    @property
    def baseline(self) -> str:
        """The model with which the others are compared."""
        return self.models[0]

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks, in the order of the scores."""
        return list(dict.fromkeys(score.task for score in self.scores))

    def metrics(self, task: str) -> list[str]:
        """The metrics that any model has on a task."""
        return list(dict.fromkeys(score.metric for score in self.scores if score.task == task))

    def find(self, model: str, task: str, metric: str) -> Score:
        """One score; raises StatetrimError if there is none."""
        score = self._by_key.get((model, task, metric))
        if score is None:
            raise StatetrimError(f"the scores hold no {metric} of {model} on {task}")
        return score

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Score]:
        return {(score.model, score.task, score.metric): score for score in self.scores}

    def pairs(self, model: str, task: str, metric: str) -> Pairs:
        """The paired samples of the baseline and of `model`; StatetrimError if a score is missing
        or their samples do not pair."""
        return pair_samples(self.find(self.baseline, task, metric), self.find(model, task, metric))

    def as_json(self, *, samples: bool = True) -> dict[str, Any]:
        """The content of the JSON file; without `samples` a summary that cannot be loaded."""
        records = []
        for score in self.scores:
            record = {"value": score.value, "count": len(score.samples), **as_fields(score)}
            if not samples:
                del record["samples"]
                record.pop("weights", None)
            records.append(record)
        content = {"models": self.models, "scores": records, "lineage": self.lineage}
        return header(self.KIND) | as_fields(content)

    def validate(self) -> None:
        if not self.models:
            raise ValueError("models is empty")


def pair_samples(before: Score, after: Score) -> Pairs:
    """The samples of two models; log-likelihoods become negative log-likelihoods."""
    first = (len(before.samples), before.unit, before.weights, before.higher_is_better)
    if first != (len(after.samples), after.unit, after.weights, after.higher_is_better):
        raise StatetrimError(f"{after.model} and {before.model} saw other samples of {after.task}")
    sign = UNITS[before.unit].sample_sign
    pairs = Pairs.of(before.samples, after.samples, before.weights or None)
    return Pairs(sign * pairs.before, sign * pairs.after, pairs.weights)
