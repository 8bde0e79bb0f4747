"""Calibrate once, cut to several shapes, measure each: where is the knee?

A cut is on disk only while it is measured; what stays is its plan, its scores and the picture.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ..artifacts.losses import headline_score, metric_loss, uninformative_flags
from ..artifacts.scores import Score, Scores
from ..artifacts.sweep import Point, Sweep, SweepScore
from ..errors import StatetrimError
from ..progress import ShowProgress
from ..reporting.report import report
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import already_done, is_complete, open_output
from ..storage.space import check_writable
from .job import Job, is_comparable, recipe_record
from .job import job_record as trim_record
from .measuring import measure_cut
from .observer import Observer, ProgressObserver
from .options import TrimFields, TrimOptions, with_changes
from .stages import CHANGEABLE_OPTIONS, StageRunner

RECORD = "sweep_job.json"
SWEEP_FILE = "sweep.json"


def sweep(
    model: ModelLike,
    shapes: Sequence[str],
    options: TrimOptions | None = None,
    *,
    out: str | Path,
    watch: Observer | None = None,
    progress: ShowProgress = True,
    **changes: Unpack[TrimFields],
) -> Sweep:
    """Measure a cut to each of `shapes` (64, 0.5, or 64x64 for keys and values).

    The directory `out` gets the sweep and a plan for every shape. `options` are those of `trim`,
    except those that say what to keep.
    """
    options = with_changes("sweep", options, changes)
    checkpoint = as_checkpoint(model)
    jobs = jobs_by_shape(checkpoint, shapes, options)
    return run(checkpoint, jobs, options, Path(out), watch or ProgressObserver(progress))


def jobs_by_shape(model: Checkpoint, shapes: Sequence[str], options: TrimOptions) -> dict[str, Job]:
    """A job for each shape, as it was written."""
    if options.has_target:
        raise StatetrimError(
            "a sweep names its shapes itself; leave out --keep, --keep-values, --square, --for and "
            "budgets"
        )
    jobs = {shape: _job_for_shape(model, options, shape) for shape in shapes}
    if len({job.after for job in jobs.values()}) < len(shapes) or not shapes:
        raise StatetrimError("a sweep needs shapes that all differ, such as 96,64,48,32")
    return jobs


def is_finished(
    model: Checkpoint, shapes: Sequence[str], options: TrimOptions, out: str | Path
) -> bool:
    """Whether `out` is the result of this sweep; anything else that is there is refused."""
    if not is_comparable(model, Path(out)):
        return False
    return already_done(Path(out), RECORD, _record(model, shapes, options))


def _record(model: Checkpoint, shapes: Sequence[str], options: TrimOptions) -> dict[str, Any]:
    return {
        **trim_record(model, options, None),
        "format": "statetrim sweep job",
        "shapes": list(shapes),
    }


def run(
    model: Checkpoint, jobs: Mapping[str, Job], options: TrimOptions, out: Path, observer: Observer
) -> Sweep:
    """All shapes, measured one after the other."""
    record = _record(model, list(jobs), options)
    if not already_done(out, RECORD, record):
        for job in jobs.values():
            job.check()
        check_writable(out)
    with open_output(out, RECORD, record, may_change=CHANGEABLE_OPTIONS) as output_dir:
        if not output_dir.done:
            methods = sorted({name for job in jobs.values() for name in job.calibrated_methods})
            points = [
                _measured_points(
                    StageRunner(
                        job.with_fixed_layerwise(output_dir.path),
                        output_dir.path,
                        observer,
                        methods,
                        name,
                        name,
                    )
                )
                for name, job in jobs.items()
            ]
            original = points[0][0]
            cuts = sorted((cut for _, cut in points), key=lambda cut: -cut.state_bytes)
            lineage = record | recipe_record(model, options)
            result = Sweep(model.name, [original, *cuts], lineage)
            result.save(output_dir.path / SWEEP_FILE)
            _draw(result, output_dir.path)
            output_dir.publish()
    _report(model, out, observer)
    return Sweep.load(out / SWEEP_FILE)


def _report(model: Checkpoint, out: Path, observer: Observer) -> None:
    """Last, because it names plans by their place; a killed run's rerun makes up for it."""
    if not is_complete(out / "report"):
        observer.on_step("report")
        observer.on_start("report")
        report([model, out], out / "report")


def _draw(result: Sweep, directory: Path) -> None:
    """The picture, where matplotlib is installed; the page draws its own."""
    if importlib.util.find_spec("matplotlib") is not None:
        from ..reporting.figure_files import save
        from ..reporting.sweep_pictures import sheet

        save(sheet(result), directory / "sweep")


def _measured_points(runner: StageRunner) -> tuple[Point, Point]:
    """The original and the cut to one shape, measured side by side."""
    scores = measure_cut(runner)
    return _point(runner.job, scores, 0), _point(runner.job, scores, 1)


def _job_for_shape(model: Checkpoint, options: TrimOptions, shape: str) -> Job:
    keys, _, values = shape.strip().partition("x")
    before = model.geometry
    shape_options = replace(
        options,
        keep=None if keys == str(before.head_k_dim) else keys,  # 128x64 cuts values alone
        keep_values=None if values in ("", str(before.head_v_dim)) else values,
    )
    return Job.from_options(model, shape_options)


def _point(job: Job, scores: Scores, model_index: int) -> Point:
    geometry = job.model.geometry if model_index == 0 else job.after
    model_name = scores.models[model_index]
    return Point(
        keep=geometry.head_k_dim,
        keep_values=geometry.head_v_dim,
        method="none" if model_index == 0 else " and ".join(job.methods),
        state_bytes=4 * geometry.state_numel,
        scores={
            f"{score.task} {score.metric}": _measured_score(scores, score)
            for score in scores.scores
            if score.model == model_name
        },
    )


def _measured_score(scores: Scores, score: Score) -> SweepScore:
    """The value, with the interval of its difference to the original laid around the original's."""
    low = high = None
    if score.model != scores.baseline:
        original = headline_score(scores, scores.baseline, score.task, score.metric).value
        loss = metric_loss(scores, score.model, score.task, score.metric).loss
        bounds = [_value_after_loss(original, score.unit, end) for end in (loss.low, loss.high)]
        low, high = min(bounds), max(bounds)
    value = headline_score(scores, score.model, score.task, score.metric).value
    chance, _ = uninformative_flags(scores, score.task, score.metric)
    return SweepScore(value, low, high, score.unit, score.higher_is_better, chance)


def _value_after_loss(before: float, unit: str, loss: float) -> float:
    """The value that a loss, in the unit in which losses are told, leaves."""
    if unit == "perplexity":
        return before * (1 + loss / 100)
    return before - loss / 100 if unit == "share" else before + loss
