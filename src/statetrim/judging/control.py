"""Comparison of a cut with random cuts of the same shape, layers and heads.

Random cuts show two things. A group of tasks on which they lose no more than its limit does not
depend on the state at this size, so it cannot show that selection kept anything. And on one group
at least a cut must be better than one more random cut would be, which the spread of several
predicts; on the others that depend on the state it must lose less than they do on average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.scores import Score, Scores, pair_samples
from ..errors import StatetrimError
from ..maths.paired import Interval, Pairs, advantage_over_spread, difference_interval
from ..tasks.unit import UNITS
from .losses import Loss, headline_score

RANDOM_METHOD = "rand"  # the method of a random cut
MIN_CONTROLS = 4  # random cuts without which their spread is not known
_SMALLEST_KL = 1e-9  # nats


@dataclass(frozen=True)
class ControlComparison:
    """A cut and the random cuts of its shape on one task."""

    task: str
    loss: float  # of the cut, on the samples that the random cuts have too
    losses: Sequence[float]  # of the random cuts, in the unit of the loss
    limit: float  # of the task's group
    advantage: Interval  # over one more random cut

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses)

    @property
    def shows_state(self) -> bool:
        """Whether random cuts lose more than the limit, so that keeping it takes the right
        channels."""
        return self.mean_loss > self.limit

    @property
    def is_better(self) -> bool:
        """Whether the cut is significantly better than one more random cut would be, and loses less
        than each of those measured, which may happen to be alike."""
        return self.advantage.low > 0 and self.loss < min(self.losses)

    @property
    def is_better_than_mean(self) -> bool:
        """Whether the cut loses less than the random cuts do on average."""
        return self.loss < self.mean_loss


def recorded_origin(scores: Scores, model: str) -> Mapping[str, Any]:
    """What `evaluate` recorded of how a cut was made; empty if nothing valid."""
    cuts = scores.lineage.get("cuts")
    origin = cuts.get(model) if isinstance(cuts, dict) else None
    return origin if isinstance(origin, dict) else {}


def random_cuts(scores: Scores) -> list[str]:
    """The random cuts among the models, by the methods that `evaluate` recorded, or else by their
    directory name."""
    names = []
    for name in scores.models[1:]:
        methods = recorded_origin(scores, name).get("methods", [Path(name).name])
        if isinstance(methods, list) and methods and all(x == RANDOM_METHOD for x in methods):
            names.append(name)
    return names


def controls_of(scores: Scores, model: str) -> list[str]:
    """The random cuts with the shape of `model`: those that `evaluate` made by masking, and those
    among the models that were not trained; without recorded shapes all of them."""
    shape = recorded_origin(scores, model).get("shape")
    masked = scores.lineage.get("controls")
    shapes: dict[str, Any] = {}
    for name, control in (masked if isinstance(masked, dict) else {}).items():
        shapes[name] = control.get("shape") if isinstance(control, dict) else None
    for name in random_cuts(scores):
        origin = recorded_origin(scores, name)
        if name != model and not origin.get("recovered"):
            shapes[name] = origin.get("shape", shape)
    return [name for name, other in shapes.items() if other == shape]


def compare_with_controls(scores: Scores, x: Loss, limit: float) -> ControlComparison | None:
    """The cut of a loss compared with its random cuts, on their common samples; None if fewer than
    `MIN_CONTROLS` of them were measured on the task.

    The cut is compared as it was before a refit or training, which its random cuts did not have;
    by KL from the original if that was measured, because it shows more than a score.
    """
    metric = "kl" if "kl" in scores.metrics(x.task) else x.metric
    compared = recorded_origin(scores, x.model).get("masked", x.model)
    losses, rows = list[float](), list[Tensor]()
    measured = {score.model for score in scores.scores if score.task == x.task}
    try:
        original = headline_score(scores, scores.baseline, x.task, x.metric)
        own = headline_score(scores, compared, x.task, x.metric)
        cut = _lower_is_better(headline_score(scores, compared, x.task, metric))
        for name in controls_of(scores, x.model):
            if name in measured:
                score = headline_score(scores, name, x.task, x.metric)
                losses.append(_loss(original, score, len(score.samples)))
                rows.append(_lower_is_better(headline_score(scores, name, x.task, metric)))
        if len(rows) < MIN_CONTROLS:
            return None
        common = min(len(cut), *(len(row) for row in rows))
        others = torch.stack([row[:common] for row in rows])
        advantage = advantage_over_spread(cut[:common], others)
    except StatetrimError:  # other metrics or samples than the cut's, or not finite
        return None
    return ControlComparison(x.task, _loss(original, own, common), losses, limit, advantage)


def trained_control_is_as_good(scores: Scores, model: str, tasks: Sequence[str]) -> bool | None:
    """Whether a random cut with the same training does as well on one of `tasks`; None if no such
    control was measured."""
    shape = recorded_origin(scores, model).get("shape")
    trained = [n for n in random_cuts(scores) if recorded_origin(scores, n).get("recovered")]
    same_shape = [n for n in trained if recorded_origin(scores, n).get("shape") == shape]
    for name in same_shape:
        for task in tasks:
            metric = "kl" if "kl" in scores.metrics(task) else scores.metrics(task)[0]
            pairs = Pairs(
                _lower_is_better(headline_score(scores, model, task, metric)),
                _lower_is_better(headline_score(scores, name, task, metric)),
            )
            if difference_interval([pairs]).low <= 0:
                return True
    return False if same_shape else None


def _lower_is_better(score: Score) -> Tensor:
    """A figure per sample, of which less is better: the logarithm of KL, nats per token, or the
    share that is wrong."""
    samples = torch.tensor(score.samples, dtype=torch.float64)
    if score.metric == "kl":
        return samples.clamp_min(_SMALLEST_KL).log()
    samples = samples * UNITS[score.unit].sample_sign
    if score.weights is not None:
        samples = samples / torch.tensor(score.weights, dtype=torch.float64)
    return -samples if score.higher_is_better else samples


def _loss(original: Score, cut: Score, count: int) -> float:
    """The loss of a cut on the first `count` samples."""
    before, after = (
        replace(x, samples=x.samples[:count], weights=x.weights and x.weights[:count])
        for x in (original, cut)
    )
    change = UNITS[cut.unit].change([pair_samples(before, after)]).estimate
    return -change if cut.higher_is_better else change
