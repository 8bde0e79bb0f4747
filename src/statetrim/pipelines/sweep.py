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
from ..storage.models import ModelLike, opened
from ..storage.output import already_done, complete, output
from ..storage.space import check_writable
from .job import Job, is_comparable, recipe
from .job import record as trim_record
from .measuring import measure
from .observer import Reported, Watch
from .options import TrimFields, TrimOptions, changed
from .stages import FREE, Run

RECORD = "sweep_job.json"
FILE = "sweep.json"


def sweep(
    model: ModelLike,
    shapes: Sequence[str],
    options: TrimOptions | None = None,
    *,
    out: str | Path,
    watch: Watch | None = None,
    progress: ShowProgress = True,
    **changes: Unpack[TrimFields],
) -> Sweep:
    """Measure a cut to each of `shapes` (64, 0.5, or 64x64 for keys and values).

    The directory `out` gets the sweep and a plan for every shape. `options` are those of `trim`,
    except those that say what to keep.
    """
    options = changed("sweep", options, changes)
    checkpoint = opened(model)
    jobs = jobs_of(checkpoint, shapes, options)
    return run(checkpoint, jobs, options, Path(out), watch or Reported(progress))


def jobs_of(model: Checkpoint, shapes: Sequence[str], options: TrimOptions) -> dict[str, Job]:
    """A job for each shape, as it was written."""
    if options.asks:
        raise StatetrimError(
            "a sweep names its shapes itself; leave out --keep, --keep-values, --square, --for and "
            "budgets"
        )
    jobs = {shape: _of_shape(model, options, shape) for shape in shapes}
    if len({job.after for job in jobs.values()}) < len(shapes) or not shapes:
        raise StatetrimError("a sweep needs shapes that all differ, such as 96,64,48,32")
    return jobs


def finished(
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
    model: Checkpoint, jobs: Mapping[str, Job], options: TrimOptions, out: Path, watch: Watch
) -> Sweep:
    """All shapes, measured one after the other."""
    record = _record(model, list(jobs), options)
    if not already_done(out, RECORD, record):
        for job in jobs.values():
            job.check()
        check_writable(out)
    with output(out, RECORD, record, free=FREE) as work:
        if not work.done:
            methods = sorted({name for job in jobs.values() for name in job.calibrated_methods})
            points = [
                _measured_points(Run(job.decided(work.path), work.path, watch, methods, name, name))
                for name, job in jobs.items()
            ]
            original = points[0][0]
            cuts = sorted((cut for _, cut in points), key=lambda cut: -cut.state_bytes)
            made = record | recipe(model, options)
            found = Sweep(model.name, [original, *cuts], made)
            found.save(work.path / FILE)
            _draw(found, work.path)
            work.publish()
    _report(model, out, watch)
    return Sweep.load(out / FILE)


def _report(model: Checkpoint, out: Path, watch: Watch) -> None:
    """Last, because it names plans by their place; a killed run's rerun makes up for it."""
    if not complete(out / "report"):
        watch.enters("report")
        watch.begins("report")
        report([model, out], out / "report")


def _draw(found: Sweep, directory: Path) -> None:
    """The picture, where matplotlib is installed; the page draws its own."""
    if importlib.util.find_spec("matplotlib") is not None:
        from ..reporting.figure_files import save
        from ..reporting.sweep_pictures import sheet

        save(sheet(found), directory / "sweep")


def _measured_points(stages: Run) -> tuple[Point, Point]:
    """The original and the cut to one shape, measured side by side."""
    scores = measure(stages)
    return _point(stages.job, scores, 0), _point(stages.job, scores, 1)


def _of_shape(model: Checkpoint, options: TrimOptions, shape: str) -> Job:
    keys, _, values = shape.strip().partition("x")
    before = model.geometry
    asked = replace(
        options,
        keep=None if keys == str(before.head_k_dim) else keys,  # 128x64 cuts values alone
        keep_values=None if values in ("", str(before.head_v_dim)) else values,
    )
    return Job.of(model, asked)


def _point(job: Job, scores: Scores, number: int) -> Point:
    geometry = job.model.geometry if number == 0 else job.after
    who = scores.models[number]
    return Point(
        keep=geometry.head_k_dim,
        keep_values=geometry.head_v_dim,
        method="none" if number == 0 else " and ".join(job.methods),
        state_bytes=4 * geometry.state_numel,
        scores={
            f"{s.task} {s.metric}": _measured(scores, s) for s in scores.scores if s.model == who
        },
    )


def _measured(scores: Scores, score: Score) -> SweepScore:
    """The value, with the interval of its difference to the original laid around the original's."""
    low = high = None
    if score.model != scores.baseline:
        before = headline_score(scores, scores.baseline, score.task, score.metric).value
        loss = metric_loss(scores, score.model, score.task, score.metric).loss
        ends = [_after(before, score.unit, end) for end in (loss.low, loss.high)]
        low, high = min(ends), max(ends)
    value = headline_score(scores, score.model, score.task, score.metric).value
    floor, _ = uninformative_flags(scores, score.task, score.metric)
    return SweepScore(value, low, high, score.unit, score.higher_is_better, floor)


def _after(before: float, unit: str, loss: float) -> float:
    """The value that a loss, in the unit in which losses are told, leaves."""
    if unit == "perplexity":
        return before * (1 + loss / 100)
    return before - loss / 100 if unit == "share" else before + loss
