"""Prune to one of several shapes and measure the cut."""

import shutil
from pathlib import Path

from ..artifacts.decision import MeasuredShape, ShapeScore
from ..artifacts.scores import Score, Scores
from ..judging.losses import headline_score, metric_loss, uninformative_flags
from ..serving.target import Target
from ..storage.output import is_complete
from ..tasks.unit import UNITS
from .job import Job
from .stages import PLAN, PRUNED, REFITTED, StageRunner


def plan_name(target: Target) -> str:
    """File name of the plan for a shape."""
    return f"plan-{target}.json"


def measure_cut(runner: StageRunner) -> Scores:
    """Scores of the original and of the cut of `runner.job`, in this order; those of an earlier run
    if it finished them.

    The plan, the scores, the cut and its refitted copy stay in `runner.directory`.
    """
    job, directory = runner.job, runner.directory
    name = str(job.target)
    path = directory / f"scores-{name}.json"
    if not is_complete(path):
        cut = runner.ensure_pruned(f"cut-{name}", runner.ensure_plan(plan_name(job.target)))
        if job.runs_refit:
            cut = runner.ensure_refitted(cut, f"fitted-{name}")
        runner.ensure_scores([cut], path)
    return Scores.load(path)


def delete_cut(runner: StageRunner) -> None:
    """Delete the cut of `runner.job`, its refitted copy and the statistics of the refit."""
    for path in _result_names(runner):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def adopt_cut(runner: StageRunner) -> None:
    """Rename what `measure_cut` made to the names under which the stages of a run look for it, so
    that nothing is made twice. A killed run continues with what is left."""
    plan = runner.directory / PLAN
    if not plan.exists():
        shutil.copyfile(runner.directory / plan_name(runner.job.target), plan)
    for path, name in _result_names(runner).items():
        if path.exists():
            path.rename(runner.directory / name)


def _result_names(runner: StageRunner) -> dict[Path, str]:
    """The files of a measured cut, with their names in a run of one shape."""
    name, directory = str(runner.job.target), runner.directory
    return {
        directory / f"cut-{name}": PRUNED,
        directory / f"fitted-{name}-statistics.safetensors": f"{REFITTED}-statistics.safetensors",
        directory / f"fitted-{name}": REFITTED,
    }


def measured_shape(job: Job, scores: Scores, model_index: int) -> MeasuredShape:
    """The scores of one model: 0 is the original, 1 the cut of `job`."""
    geometry = job.model.geometry if model_index == 0 else job.after
    measured = {}
    for score in scores.scores:
        if score.model == scores.models[model_index]:
            measured[f"{score.task} {score.metric}"] = _shape_score(scores, score)
    return MeasuredShape(
        keep=geometry.head_k_dim,
        keep_values=geometry.head_v_dim,
        method="none" if model_index == 0 else " and ".join(job.methods),
        state_bytes=4 * geometry.state_numel,
        scores=measured,
    )


def _shape_score(scores: Scores, score: Score) -> ShapeScore:
    """A score with an interval: the original's score changed by each end of the loss interval."""
    low = high = None
    if score.model != scores.baseline:
        original = headline_score(scores, scores.baseline, score.task, score.metric).value
        loss = metric_loss(scores, score.model, score.task, score.metric).loss
        change, unit = -loss if score.higher_is_better else loss, UNITS[score.unit]
        low, high = unit.value_after(original, change.low), unit.value_after(original, change.high)
    value = headline_score(scores, score.model, score.task, score.metric).value
    is_uninformative, _ = uninformative_flags(scores, score.task, score.metric)
    return ShapeScore(value, low, high, score.unit, score.higher_is_better, is_uninformative)
