"""Scores: metrics of models on tasks with their samples, so that any two can be compared later."""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..maths.formatting import list_text, score_text, shorten
from ..maths.paired import Pairs
from ..maths.table import Table
from ..maths.units import MIB, is_number_list, is_text_list
from ..storage.json_file import read_json, write_json
from .header import check_header, header

MAX_BYTES = 1024 * MIB

Unit = Literal["perplexity", "share", "nats"]


@dataclass(frozen=True)
class Score:
    """One metric of one model on one task.

    `samples` are shares or nats, whose mean is the value, or log-likelihoods of documents, from
    which the value is the perplexity per unit of `weights` (words; 1 per sample by default).
    """

    model: str
    task: str
    metric: str
    unit: Unit
    higher_is_better: bool
    samples: list[float]
    weights: list[float] | None = None

    def __repr__(self) -> str:
        subject = f"{shorten(self.model)} on {shorten(self.task)}, {shorten(self.metric)}"
        value = score_text(self.value, self.unit) if self.samples else "none"
        return f"<Score of {subject}: {value}, {len(self.samples)} samples>"

    @property
    def value(self) -> float:
        """The metric over all samples."""
        total = sum(self.samples)
        if self.unit == "perplexity":
            return _bounded_exp(-total / sum(self.weights or [len(self.samples)]))
        return total / len(self.samples)


@dataclass(frozen=True)
class Scores:
    """All scores of a run; the baseline is the first of `models`."""

    models: list[str]
    scores: list[Score]
    lineage: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject duplicates: a caller could pick the better one."""
        if len(self._by_key) < len(self.scores) or len({*self.models}) < len(self.models):
            raise StatetrimError("the scores hold a model, or a metric of a model, twice")

    def __repr__(self) -> str:
        return f"<Scores of {list_text(self.models)} on {list_text(self.tasks, 8)}>"

    def _repr_html_(self) -> str:
        return self.table().html()

    def table(self) -> Table:
        """A row per metric, a column per model, with the scores by which tasks are judged."""
        from .losses import scores_table  # losses imports this module

        return scores_table(self)

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
        """The paired samples of the baseline and of `model`; raises StatetrimError if a score is
        missing, or if their samples differ in number, weights, unit or direction."""
        return pair_samples(self.find(self.baseline, task, metric), self.find(model, task, metric))

    def as_json(self, *, samples: bool = True) -> dict[str, Any]:
        """The content of the JSON file; without `samples` a summary that cannot be loaded."""
        records = []
        for score in self.scores:
            record = {"value": score.value, "count": len(score.samples), **asdict(score)}
            if not samples:
                del record["samples"], record["weights"]
            records.append(record)
        content = {"models": self.models, "scores": records, "lineage": self.lineage}
        return header("scores") | content

    def save(self, path: str | Path) -> None:
        """Write a JSON file atomically, replacing an existing one."""
        write_json(Path(path), self.as_json(), indent=None)

    @classmethod
    def load(cls, path: str | Path) -> "Scores":
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        stored = read_json(Path(path), MAX_BYTES)
        check_header(stored, "scores", path)
        try:
            models, lineage = stored["models"], stored["lineage"]
            scores = [parse_score(score) for score in stored["scores"]]
        except (KeyError, TypeError):
            raise StatetrimError(f"{path} is not what statetrim evaluate writes") from None
        valid = is_text_list(models) and bool(models) and isinstance(lineage, dict)
        if not valid or not all(_is_valid(score) for score in scores):
            raise StatetrimError(f"{path} is not what statetrim evaluate writes")
        return cls(models, scores, lineage)


def pair_samples(before: Score, after: Score) -> Pairs:
    """The samples of two models; log-likelihoods become negative log-likelihoods.

    Raises StatetrimError if number, weights, unit or direction of the samples differ.
    """
    first = (len(before.samples), before.unit, before.weights, before.higher_is_better)
    if first != (len(after.samples), after.unit, after.weights, after.higher_is_better):
        raise StatetrimError(f"{after.model} and {before.model} saw other samples of {after.task}")
    sign = -1.0 if before.unit == "perplexity" else 1.0
    weights = _tensor(before.weights) if before.weights else None
    return Pairs(sign * _tensor(before.samples), sign * _tensor(after.samples), weights)


def parse_score(stored: dict[str, Any]) -> Score:
    """A score from untrusted JSON, whose types are not checked; raises KeyError or TypeError."""
    return Score(**{name: stored[name] for name in Score.__dataclass_fields__})


def _is_valid(score: Score) -> bool:
    """Whether an untrusted score has fields of the right types, and samples that give a value."""
    weights = score.weights
    if weights is not None:
        if not is_number_list(weights) or not is_number_list(score.samples):
            return False
        if len(weights) != len(score.samples) or min(weights) < 0 or sum(weights) <= 0:
            return False
    return (
        is_text_list([score.model, score.task, score.metric])
        and score.unit in get_args(Unit)
        and isinstance(score.higher_is_better, bool)
        and is_number_list(score.samples)
    )


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _bounded_exp(value: float) -> float:
    """e to the power of `value`, but 1e304 from 700 on."""
    return exp(value) if value < 700 else float("1e304")  # JSON has no infinity
