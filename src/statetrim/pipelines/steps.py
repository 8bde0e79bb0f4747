"""What a run of `trim` will do, and about what each step takes."""

from collections.abc import Mapping
from typing import Unpack

from ..storage.models import ModelLike, opened
from . import estimate as cost
from .estimate import Machine, Step
from .job import RECOVERED_BATCH, SEQUENCE, Job
from .options import TrimFields, TrimOptions, changed
from .shape_choice import MEASURED, fitting_tokens

REPORT = Step("report", "one page", 5.0)


def estimate(
    model: ModelLike, options: TrimOptions | None = None, **changes: Unpack[TrimFields]
) -> list[Step]:
    """Describe what `trim` would do with these options, with an estimate for each step
    (`--dry-run`).

    Nothing is run or written, and of a hub model only headers are downloaded. Estimates are right
    within a factor of two or three.
    """
    options = changed("estimate", options, changes)
    job = Job.of(opened(model, weights="headers"), options)
    job.check()
    return steps(job, Machine.here(options.placement))


def steps(job: Job, machine: Machine) -> list[Step]:
    """What the run will do, and about what that takes."""
    model, options, after = job.model, job.options, job.after
    nbytes = cost.weight_bytes(model)
    held, program = _held(job), cost.PROGRAM
    found = [_calibrate(job, machine)] if job.calibrated_methods else []
    found.append(_select(job))
    found += _comparing(job, machine) if job.candidates else []
    shape = "as chosen" if job.candidates else after.describe_against(model.geometry)
    found.append(
        Step("prune", f"state {shape}", cost.copying(nbytes), 64 * 2**20, nbytes),
    )
    read = cost.reading(model, 2 * 64, 1, 64, machine)
    found.append(
        Step("check", "sliced equals masked, prefill equals decode", 4 * read, program + 4 * held)
    )
    found += [_refit(job, machine)] if job.refits else []
    if job.recovered_tokens:
        # Forward and backward of the student, forward of the teacher.
        seconds = 4 * cost.reading(
            model, job.recovered_tokens, RECOVERED_BATCH, options.length, machine
        )
        does = f"{job.recovered_tokens:,} tokens, distilled from the original"
        found.append(Step("recover", does, seconds, program + 3 * held, 2 * nbytes))
    models = 2 + bool(job.recovered_tokens) + job.controls
    found.append(_evaluate(job, machine, models))
    if job.times:
        seconds = 60 * cost.reading(model, 64 * 16, 16, 64, machine)
        found.append(Step("benchmark", "both, in turns", seconds, program + 2 * held))
    found.append(REPORT)
    return found


def sweep_steps(jobs: Mapping[str, Job], machine: Machine) -> list[Step]:
    """The same of a sweep: calibration once, then everything of one shape after the other."""
    calibrated = [job for job in jobs.values() if job.calibrated_methods]
    found = [_calibrate(calibrated[0], machine)] if calibrated else []
    for name, job in jobs.items():
        nbytes = cost.weight_bytes(job.model)
        parts = [_select(job), Step("prune", "", cost.copying(nbytes), 0, nbytes)]
        parts += [_refit(job, machine)] if job.refits else []
        parts.append(_evaluate(job, machine, 2))
        does = ", ".join(part.name for part in parts)
        seconds, memory = sum(part.seconds for part in parts), max(part.memory for part in parts)
        found.append(Step(name, does, seconds, memory, 2 * nbytes if job.refits else nbytes))
    return [*found, REPORT]


def _held(job: Job) -> int:
    """Bytes of weights in memory."""
    return 0 if job.streamed else cost.weight_bytes(job.model)


def _calibrate(job: Job, machine: Machine) -> Step:
    model, options, before = job.model, job.options, job.model.geometry
    gram = 2 * 8 * len(before.layers) * before.num_k_heads * before.head_k_dim**2
    if job.cuts_heads:
        gram = 8 * len(before.layers) * 2 * (before.num_v_heads * before.head_v_dim) ** 2
    seconds = cost.reading(model, job.tokens, options.batch_size, options.length, machine)
    made = {"recall sequences": options.recall, "random tokens": options.random}
    parts = [f"{100 * part:.0f}% {kind}" for kind, part in made.items() if part]
    does = ", ".join([f"{job.tokens:,} tokens of {options.text}", *parts])
    return Step("calibrate", does, seconds, cost.PROGRAM + _held(job) + gram, gram)


def _select(job: Job) -> Step:
    heads = len(job.after.layers) * job.after.num_k_heads
    return Step("select", f"{' and '.join(job.methods)}, {heads} heads", heads * 0.01)


def _refit(job: Job, machine: Machine) -> Step:
    model, options, after = job.model, job.options, job.after
    if job.cuts_heads:  # from the sums that the heads were chosen by
        does, nbytes = "output projections, from the same statistics", cost.weight_bytes(model)
        return Step("refit", does, cost.copying(nbytes), cost.PROGRAM, nbytes)
    seconds = 2 * cost.reading(model, job.tokens, options.batch_size, options.length, machine)
    width = after.num_v_heads * (model.geometry.head_v_dim + after.head_v_dim)
    moments = 8 * len(after.layers) * after.num_v_heads * after.head_v_dim * width
    disk = cost.weight_bytes(model) + moments
    memory = cost.PROGRAM + 2 * _held(job) + moments
    return Step("refit", "output projections, in closed form", seconds, memory, disk)


def _evaluate(job: Job, machine: Machine, models: int) -> Step:
    """Also by comparison with the original, which is run with each."""
    model, options = job.model, job.options
    tokens = options.limit * SEQUENCE * len(options.tasks)
    seconds = (2 * models - 1) * cost.reading(model, tokens, 8, SEQUENCE, machine)
    does = f"{', '.join(options.tasks)} on {models} models, {options.limit} samples a task"
    memory = cost.PROGRAM + 2 * _held(job)
    return Step("evaluate", does, seconds, memory, cost.weight_bytes(model))


def _comparing(job: Job, machine: Machine) -> list[Step]:
    """The prediction runs every mixer once more for each shape; three are cut, fitted, measured."""
    model, options, count = job.model, job.options, len(job.candidates)
    nbytes, held = cost.weight_bytes(model), _held(job)
    batch = options.batch_size, options.length, machine
    part = cost.reading(model, fitting_tokens(job) + options.limit * SEQUENCE, *batch)
    predict = Step("predict", f"{count} shapes", (2 + count) * part, cost.PROGRAM + held)
    if count == 1:
        return [predict]
    three = min(MEASURED, count)
    fit = 2 * cost.reading(model, job.tokens, *batch)
    read = 3 * cost.reading(model, 2 * options.limit * SEQUENCE, *batch)
    seconds = three * (2 * cost.copying(nbytes) + fit + read)
    does = f"{three} shapes: cut, refit, evaluate"
    return [predict, Step("compare", does, seconds, cost.PROGRAM + 2 * held, 2 * nbytes)]
