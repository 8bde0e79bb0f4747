"""What a run of `trim` will do, and about what each step takes."""

from collections.abc import Mapping
from typing import Unpack

from ..storage.models import ModelLike, as_checkpoint
from . import estimate as cost
from .estimate import Machine, Step
from .job import EVAL_LENGTH, RECOVERY_BATCH_SIZE, Job
from .options import TrimFields, TrimOptions, with_changes
from .shape_choice import MEASURED, prediction_tokens

REPORT_STEP = Step("report", "one page", 5.0)


def estimate(
    model: ModelLike, options: TrimOptions | None = None, **changes: Unpack[TrimFields]
) -> list[Step]:
    """Describe what `trim` would do with these options, with an estimate for each step
    (`--dry-run`).

    Nothing is run or written, and of a hub model only headers are downloaded. Estimates are right
    within a factor of two or three.
    """
    options = with_changes("estimate", options, changes)
    job = Job.from_options(as_checkpoint(model, weights="headers"), options)
    job.check()
    return steps(job, Machine.measure(options.placement))


def steps(job: Job, machine: Machine) -> list[Step]:
    """What the run will do, and about what that takes."""
    model, options, after = job.model, job.options, job.after
    nbytes = cost.weight_bytes(model)
    weights, process = _weights_in_memory(job), cost.PROCESS_BYTES
    result = [_calibrate_step(job, machine)] if job.calibrated_methods else []
    result.append(_select_step(job))
    result += _comparison_steps(job, machine) if job.candidates else []
    shape = "as chosen" if job.candidates else after.describe_against(model.geometry)
    result.append(
        Step("prune", f"state {shape}", cost.copying_seconds(nbytes), 64 * 2**20, nbytes),
    )
    pass_seconds = cost.reading_seconds(model, 2 * 64, 1, 64, machine)
    result.append(
        Step(
            "check",
            "sliced equals masked, prefill equals decode",
            4 * pass_seconds,
            process + 4 * weights,
        )
    )
    result += [_refit_step(job, machine)] if job.runs_refit else []
    if job.recovery_tokens:
        # Forward and backward of the student, forward of the teacher.
        seconds = 4 * cost.reading_seconds(
            model, job.recovery_tokens, RECOVERY_BATCH_SIZE, options.length, machine
        )
        does = f"{job.recovery_tokens:,} tokens, distilled from the original"
        result.append(Step("recover", does, seconds, process + 3 * weights, 2 * nbytes))
    models = 2 + bool(job.recovery_tokens) + job.runs_control
    result.append(_evaluate_step(job, machine, models))
    if job.runs_benchmark:
        seconds = 60 * cost.reading_seconds(model, 64 * 16, 16, 64, machine)
        result.append(Step("benchmark", "both, in turns", seconds, process + 2 * weights))
    result.append(REPORT_STEP)
    return result


def sweep_steps(jobs: Mapping[str, Job], machine: Machine) -> list[Step]:
    """The same of a sweep: calibration once, then everything of one shape after the other."""
    calibrated = [job for job in jobs.values() if job.calibrated_methods]
    result = [_calibrate_step(calibrated[0], machine)] if calibrated else []
    for name, job in jobs.items():
        nbytes = cost.weight_bytes(job.model)
        shape_steps = [
            _select_step(job),
            Step("prune", "", cost.copying_seconds(nbytes), 0, nbytes),
        ]
        shape_steps += [_refit_step(job, machine)] if job.runs_refit else []
        shape_steps.append(_evaluate_step(job, machine, 2))
        does = ", ".join(step.name for step in shape_steps)
        seconds, memory = (
            sum(step.seconds for step in shape_steps),
            max(step.memory for step in shape_steps),
        )
        result.append(Step(name, does, seconds, memory, 2 * nbytes if job.runs_refit else nbytes))
    return [*result, REPORT_STEP]


def _weights_in_memory(job: Job) -> int:
    """Bytes of weights in memory."""
    return 0 if job.streams_weights else cost.weight_bytes(job.model)


def _calibrate_step(job: Job, machine: Machine) -> Step:
    model, options, before = job.model, job.options, job.model.geometry
    sum_bytes = 2 * 8 * len(before.layers) * before.num_k_heads * before.head_k_dim**2
    if job.removes_heads:
        sum_bytes = 8 * len(before.layers) * 2 * (before.num_v_heads * before.head_v_dim) ** 2
    seconds = cost.reading_seconds(model, job.tokens, options.batch_size, options.length, machine)
    generated = {"recall sequences": options.recall, "random tokens": options.random}
    fractions = [
        f"{100 * fraction:.0f}% {kind}" for kind, fraction in generated.items() if fraction
    ]
    does = ", ".join([f"{job.tokens:,} tokens of {options.text}", *fractions])
    return Step(
        "calibrate",
        does,
        seconds,
        cost.PROCESS_BYTES + _weights_in_memory(job) + sum_bytes,
        sum_bytes,
    )


def _select_step(job: Job) -> Step:
    heads = len(job.after.layers) * job.after.num_k_heads
    return Step("select", f"{' and '.join(job.methods)}, {heads} heads", heads * 0.01)


def _refit_step(job: Job, machine: Machine) -> Step:
    model, options, after = job.model, job.options, job.after
    if job.removes_heads:  # from the sums that the heads were chosen by
        does, nbytes = "output projections, from the same statistics", cost.weight_bytes(model)
        return Step("refit", does, cost.copying_seconds(nbytes), cost.PROCESS_BYTES, nbytes)
    seconds = 2 * cost.reading_seconds(
        model, job.tokens, options.batch_size, options.length, machine
    )
    width = after.num_v_heads * (model.geometry.head_v_dim + after.head_v_dim)
    moments = 8 * len(after.layers) * after.num_v_heads * after.head_v_dim * width
    disk = cost.weight_bytes(model) + moments
    memory = cost.PROCESS_BYTES + 2 * _weights_in_memory(job) + moments
    return Step("refit", "output projections, in closed form", seconds, memory, disk)


def _evaluate_step(job: Job, machine: Machine, models: int) -> Step:
    """Also by comparison with the original, which is run with each."""
    model, options = job.model, job.options
    tokens = options.limit * EVAL_LENGTH * len(options.tasks)
    seconds = (2 * models - 1) * cost.reading_seconds(model, tokens, 8, EVAL_LENGTH, machine)
    does = f"{', '.join(options.tasks)} on {models} models, {options.limit} samples a task"
    memory = cost.PROCESS_BYTES + 2 * _weights_in_memory(job)
    return Step("evaluate", does, seconds, memory, cost.weight_bytes(model))


def _comparison_steps(job: Job, machine: Machine) -> list[Step]:
    """The prediction runs every mixer once more for each shape; three are cut, fitted, measured."""
    model, options, count = job.model, job.options, len(job.candidates)
    nbytes, weights = cost.weight_bytes(model), _weights_in_memory(job)
    batching = options.batch_size, options.length, machine
    pass_seconds = cost.reading_seconds(
        model, prediction_tokens(job) + options.limit * EVAL_LENGTH, *batching
    )
    predict = Step(
        "predict", f"{count} shapes", (2 + count) * pass_seconds, cost.PROCESS_BYTES + weights
    )
    if count == 1:
        return [predict]
    measured = min(MEASURED, count)
    refit_seconds = 2 * cost.reading_seconds(model, job.tokens, *batching)
    eval_seconds = 3 * cost.reading_seconds(model, 2 * options.limit * EVAL_LENGTH, *batching)
    seconds = measured * (2 * cost.copying_seconds(nbytes) + refit_seconds + eval_seconds)
    does = f"{measured} shapes: cut, refit, evaluate"
    return [predict, Step("compare", does, seconds, cost.PROCESS_BYTES + 2 * weights, 2 * nbytes)]
