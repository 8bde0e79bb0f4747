"""Scores: what models got on tasks, sample by sample, so that any two can be compared later."""

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
from ..maths.units import MIB
from ..storage.json_file import read_json, write_json
from .header import check_header, header

MAX_BYTES = 1024 * MIB

Unit = Literal["perplexity", "share", "nats"]


@dataclass(frozen=True)
class Score:
    """One metric of one model on one task.

    `samples` are what the value is made of: shares to be averaged, or log-likelihoods that
    `weights` (words; without them one each) turn into a perplexity.
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
        """Of two scores with one name the kinder one could be taken: there is only one."""
        if len(self._by_key) < len(self.scores) or len({*self.models}) < len(self.models):
            raise StatetrimError("the scores hold a model, or a metric of a model, twice")

    def __repr__(self) -> str:
        return f"<Scores of {list_text(self.models)} on {list_text(self.tasks, 8)}>"

    def _repr_html_(self) -> str:
        return self.table().html()

    def table(self) -> Table:
        """A row a metric, a column a model; figures as tasks are judged by them."""
        from .losses import scores_table  # which stands above this module

        return scores_table(self)

    @property
    def baseline(self) -> str:
        return self.models[0]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(score.task for score in self.scores))

    def metrics(self, task: str) -> list[str]:
        return list(dict.fromkeys(score.metric for score in self.scores if score.task == task))

    def find(self, model: str, task: str, metric: str) -> Score:
        score = self._by_key.get((model, task, metric))
        if score is None:
            raise StatetrimError(f"the scores hold no {metric} of {model} on {task}")
        return score

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Score]:
        return {(score.model, score.task, score.metric): score for score in self.scores}

    def pairs(self, model: str, task: str, metric: str) -> Pairs:
        """The baseline and `model` on the same samples; perplexities as negative log-likelihood."""
        return pair_samples(self.find(self.baseline, task, metric), self.find(model, task, metric))

    def as_json(self, *, samples: bool = True) -> dict[str, Any]:
        omitted = () if samples else ("samples", "weights")
        records = [
            {"value": score.value, "count": len(score.samples)}
            | {name: value for name, value in asdict(score).items() if name not in omitted}
            for score in self.scores
        ]
        return {
            **header("scores"),
            "models": self.models,
            "scores": records,
            "lineage": self.lineage,
        }

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.as_json(), indent=None)

    @classmethod
    def load(cls, path: str | Path) -> "Scores":
        stored = read_json(Path(path), MAX_BYTES)
        check_header(stored, "scores", path)
        try:
            models, lineage = stored["models"], stored["lineage"]
            scores = [parse_score(score) for score in stored["scores"]]
        except (KeyError, TypeError):
            raise StatetrimError(f"{path} is not what statetrim evaluate writes") from None
        if (
            not isinstance(models, list)
            or not models
            or not all(isinstance(model, str) for model in models)
            or not isinstance(lineage, dict)
            or not all(map(_is_valid, scores))
        ):
            raise StatetrimError(f"{path} is not what statetrim evaluate writes")
        return cls(models, scores, lineage)


def pair_samples(before: Score, after: Score) -> Pairs:
    """Two models on the same samples; perplexities as negative log-likelihood."""
    is_same_metric = (before.unit, before.weights, before.higher_is_better) == (
        after.unit,
        after.weights,
        after.higher_is_better,
    )
    if len(before.samples) != len(after.samples) or not is_same_metric:
        raise StatetrimError(f"{after.model} and {before.model} saw other samples of {after.task}")
    sign = -1.0 if before.unit == "perplexity" else 1.0
    weights = _tensor(before.weights) if before.weights else None
    return Pairs(sign * _tensor(before.samples), sign * _tensor(after.samples), weights)


def parse_score(stored: dict[str, Any]) -> Score:
    names = Score.__dataclass_fields__
    return Score(**{name: stored[name] for name in names})


def _is_valid(score: Score) -> bool:
    """Whether an untrusted score has the fields' types, and samples that give a value."""
    return (
        all(isinstance(name, str) for name in (score.model, score.task, score.metric))
        and score.unit in get_args(Unit)
        and isinstance(score.higher_is_better, bool)
        and _are_finite_numbers(score.samples)
        and (
            score.weights is None
            or (
                _are_finite_numbers(score.weights)
                and len(score.weights) == len(score.samples)
                and min(score.weights) >= 0
                and sum(score.weights) > 0
            )
        )
    )


def _are_finite_numbers(values: Any) -> bool:
    return (
        isinstance(values, list)
        and bool(values)
        and all(type(value) in (int, float) and abs(value) < 1e300 for value in values)
    )


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _bounded_exp(value: float) -> float:
    return exp(value) if value < 700 else float("1e304")  # JSON has no infinity
