"""Calibrate once, prune to several shapes and measure each: quality against size of the state.

A cut is deleted after it was measured; its plan, its scores and the figure stay.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..artifacts.scores import Score, Scores
from ..artifacts.sweep import Point, Sweep, SweepScore
from ..errors import StatetrimError
from ..judging.losses import headline_score, metric_loss, uninformative_flags
from ..options import takes_options
from ..reporting.report import report
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import (
    already_done,
    check_absent,
    is_complete,
    open_output,
    remove_empty_partial,
)
from ..storage.space import check_writable
from ..tasks.unit import UNITS
from .job import Job, is_comparable, recipe_record
from .job import job_record as trim_record
from .measuring import delete_cut, measure_cut
from .observer import Observer, ProgressObserver
from .options import SweepOptions, TrimOptions
from .stages import CHANGEABLE_OPTIONS, StageRunner

RECORD = "sweep_job.json"
SWEEP_FILE = "sweep.json"


@takes_options(SweepOptions)
def sweep(model: ModelLike, options: SweepOptions) -> Sweep:
    """Measure a cut to each of `shapes` (64, 0.5, or 64x64 for keys and values).

    The directory `out` gets the sweep and a plan for every shape. The other options are those of
    `trim`, except those that say what to keep.
    """
    checkpoint = as_checkpoint(model)
    jobs = jobs_by_shape(checkpoint, options.shapes, options)
    observer = options.watch or ProgressObserver(options.progress)
    return run(checkpoint, jobs, options, Path(options.out), observer)


def jobs_by_shape(model: Checkpoint, shapes: Sequence[str], options: TrimOptions) -> dict[str, Job]:
    """A job for each shape, by the shape as the caller wrote it.

    Raises StatetrimError if the options say what to keep, if two shapes are equal, or without
    shapes.
    """
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
    """Whether `out` is the result of this sweep; False if nothing is there. Raises StatetrimError
    if it is anything else, or if the model is not downloaded and `out` exists."""
    out = Path(out)
    if not is_comparable(model, out):
        check_absent(out)
        return False
    return already_done(out, RECORD, _record(model, shapes, options))


def _record(model: Checkpoint, shapes: Sequence[str], options: TrimOptions) -> dict[str, Any]:
    """What identifies a sweep: the record of `trim` without a target, and the shapes."""
    return {
        **trim_record(model, options, None),
        "format": "statetrim sweep job",
        "shapes": list(shapes),
    }


def run(
    model: Checkpoint, jobs: Mapping[str, Job], options: TrimOptions, out: Path, observer: Observer
) -> Sweep:
    """Measure all shapes, one after the other, and write the sweep and its report to `out`; what an
    earlier run finished is skipped. Raises StatetrimError if `out` is anything else."""
    record = _record(model, list(jobs), options)
    if not already_done(out, RECORD, record):
        for job in jobs.values():
            job.check()
        check_writable(out)
    with open_output(out, RECORD, record, may_change=CHANGEABLE_OPTIONS) as output_dir:
        if not output_dir.done:
            original, cuts = _measure_shapes(jobs, output_dir.path, observer)
            lineage = record | recipe_record(model, options)
            result = Sweep(model.name, [original, *cuts], lineage)
            result.save(output_dir.path / SWEEP_FILE)
            _draw(result, output_dir.path)
            output_dir.publish()
    _report(model, out, observer)
    return Sweep.load(out / SWEEP_FILE)


def _measure_shapes(
    jobs: Mapping[str, Job], directory: Path, observer: Observer
) -> tuple[Point, list[Point]]:
    """The original as measured with the first shape, and all cuts, the largest state first."""
    methods = set[str]()
    for job in jobs.values():
        methods.update(job.calibrated_methods)
    originals, cuts = [], []
    for name, job in jobs.items():
        job = job.with_fixed_layerwise(directory)
        runner = StageRunner(job, directory, observer, sorted(methods), name, name)
        scores = measure_cut(runner)
        delete_cut(runner)
        originals.append(_point(job, scores, 0))
        cuts.append(_point(job, scores, 1))
    return originals[0], sorted(cuts, key=lambda cut: -cut.state_bytes)


def _report(model: Checkpoint, out: Path, observer: Observer) -> None:
    """Write the report, which contains final paths, after `out` is published, unless it is
    complete.

    If a run is killed before that, the rerun writes it.
    """
    remove_empty_partial(out / "report")
    if not is_complete(out / "report"):
        observer.on_step("report")
        observer.on_start("report")
        report([model, out], out / "report")


def _draw(result: Sweep, directory: Path) -> None:
    """Save the figure if matplotlib is installed; the report has its own."""
    if importlib.util.find_spec("matplotlib") is not None:
        from ..reporting.figure_files import save
        from ..reporting.sweep_pictures import sheet

        save(sheet(result), directory / "sweep")


def _job_for_shape(model: Checkpoint, options: TrimOptions, shape: str) -> Job:
    """The job of one shape (64, 0.5 or 64x64); an axis whose full width is given is not cut."""
    keys, _, values = shape.strip().partition("x")
    before = model.geometry
    shape_options = replace(
        options,
        keep=None if keys == str(before.head_k_dim) else keys,  # 128x64 removes only values
        keep_values=None if values in ("", str(before.head_v_dim)) else values,
    )
    return Job.from_options(model, shape_options)


def _point(job: Job, scores: Scores, model_index: int) -> Point:
    """The scores of one model: 0 is the original, 1 the cut."""
    geometry = job.model.geometry if model_index == 0 else job.after
    measured = {}
    for score in scores.scores:
        if score.model == scores.models[model_index]:
            measured[f"{score.task} {score.metric}"] = _measured_score(scores, score)
    return Point(
        keep=geometry.head_k_dim,
        keep_values=geometry.head_v_dim,
        method="none" if model_index == 0 else " and ".join(job.methods),
        state_bytes=4 * geometry.state_numel,
        scores=measured,
    )


def _measured_score(scores: Scores, score: Score) -> SweepScore:
    """A score with an interval: the original's score changed by each end of the loss interval."""
    low = high = None
    if score.model != scores.baseline:
        original = headline_score(scores, scores.baseline, score.task, score.metric).value
        loss = metric_loss(scores, score.model, score.task, score.metric).loss
        change, unit = -loss if score.higher_is_better else loss, UNITS[score.unit]
        low, high = unit.value_after(original, change.low), unit.value_after(original, change.high)
    value = headline_score(scores, score.model, score.task, score.metric).value
    is_uninformative, _ = uninformative_flags(scores, score.task, score.metric)
    return SweepScore(value, low, high, score.unit, score.higher_is_better, is_uninformative)
