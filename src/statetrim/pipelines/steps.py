"""The steps of a run of `trim`, with an estimate of what each takes."""

from ..options import takes_options
from ..serving.state_size import weight_bytes
from ..storage.models import ModelLike, as_checkpoint
from . import estimate as cost
from .estimate import Machine, Step
from .job import EVAL_LENGTH, RECOVERY_BATCH_SIZE, Job
from .options import TrimOptions
from .shape_choice import MEASURED, prediction_tokens, predicts_shapes

REPORT_STEP = Step("report", "one page", 5.0)


@takes_options(TrimOptions)
def estimate(model: ModelLike, options: TrimOptions) -> list[Step]:
    """Describe what `trim` would do with these options, with an estimate for each step
    (`--dry-run`).

    Nothing is run or written, and of a hub model only headers are downloaded. Estimates are right
    within a factor of two or three.
    """
    job = Job.from_options(as_checkpoint(model, weights="headers"), options)
    job.check()
    return steps(job, Machine.measure(options.placement))


def steps(job: Job, machine: Machine) -> list[Step]:
    """The steps of `trim` in order, with their estimated costs on `machine`."""
    model, options, after = job.model, job.options, job.after
    nbytes = weight_bytes(model)
    weights, process = _weights_in_memory(job), cost.PROCESS_BYTES
    result = [_calibrate_step(job, machine)] if job.calibrated_methods else []
    result.append(_select_step(job))
    if job.candidates:
        result += _comparison_steps(job, machine)
    else:
        shape, seconds = after.describe_against(model.geometry), cost.copying_seconds(nbytes)
        result.append(Step("prune", f"state {shape}", seconds, 64 * 2**20, nbytes))
    does = "sliced equals masked, prefill equals decode"
    seconds = 4 * cost.reading_seconds(model, 2 * 64, 1, 64, machine)
    result.append(Step("check", does, seconds, process + 4 * weights))
    if job.runs_refit and not job.candidates:
        result.append(_refit_step(job, machine))
    if job.recovery_tokens:
        # The student's forward and backward pass and the teacher's forward pass.
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


def _weights_in_memory(job: Job) -> int:
    """Bytes that the weights of one model take in memory; 0 if they are streamed."""
    return 0 if job.streams_weights else weight_bytes(job.model)


def _calibrate_step(job: Job, machine: Machine) -> Step:
    model, options, before = job.model, job.options, job.model.geometry
    sum_bytes = 2 * 8 * len(before.layers) * before.num_k_heads * before.head_k_dim**2
    if job.removes_heads:
        sum_bytes = 8 * len(before.layers) * 2 * (before.num_v_heads * before.head_v_dim) ** 2
    seconds = cost.reading_seconds(model, job.tokens, options.batch_size, options.length, machine)
    does = f"{job.tokens:,} tokens of {options.text}"
    if options.recall:
        does += f", {100 * options.recall:.0f}% recall sequences"
    if options.random:
        does += f", {100 * options.random:.0f}% random tokens"
    memory = cost.PROCESS_BYTES + _weights_in_memory(job) + sum_bytes
    return Step("calibrate", does, seconds, memory, sum_bytes)


def _select_step(job: Job) -> Step:
    heads = len(job.after.layers) * job.after.num_k_heads
    return Step("select", f"{' and '.join(job.methods)}, {heads} heads", heads * 0.01)


def _refit_step(job: Job, machine: Machine) -> Step:
    model, options, after = job.model, job.options, job.after
    if job.removes_heads:  # uses the statistics of calibration
        does, nbytes = "output projections, from the same statistics", weight_bytes(model)
        return Step("refit", does, cost.copying_seconds(nbytes), cost.PROCESS_BYTES, nbytes)
    seconds = 2 * cost.reading_seconds(
        model, job.tokens, options.batch_size, options.length, machine
    )
    width = after.num_v_heads * (model.geometry.head_v_dim + after.head_v_dim)
    moments = 8 * len(after.layers) * after.num_v_heads * after.head_v_dim * width
    disk = weight_bytes(model) + moments
    memory = cost.PROCESS_BYTES + 2 * _weights_in_memory(job) + moments
    return Step("refit", "output projections, in closed form", seconds, memory, disk)


def _evaluate_step(job: Job, machine: Machine, models: int) -> Step:
    """Evaluation of `models`; the original runs again with each cut, to compare logits."""
    model, options = job.model, job.options
    tokens = options.limit * EVAL_LENGTH * len(options.tasks)
    seconds = (2 * models - 1) * cost.reading_seconds(model, tokens, 8, EVAL_LENGTH, machine)
    does = f"{', '.join(options.tasks)} on {models} models, {options.limit} samples a task"
    memory = cost.PROCESS_BYTES + 2 * _weights_in_memory(job)
    return Step("evaluate", does, seconds, memory, weight_bytes(model))


def _comparison_steps(job: Job, machine: Machine) -> list[Step]:
    """The prediction, which runs every mixer once per shape, and pruning, refitting and measuring
    the best; the cut to the chosen one is the result."""
    model, options, count = job.model, job.options, len(job.candidates)
    nbytes, weights = weight_bytes(model), _weights_in_memory(job)
    batching = options.batch_size, options.length, machine
    result = []
    if predicts_shapes(job):
        pass_seconds = cost.reading_seconds(
            model, prediction_tokens(job) + options.limit * EVAL_LENGTH, *batching
        )
        memory = cost.PROCESS_BYTES + weights
        result.append(Step("predict", f"{count} shapes", (2 + count) * pass_seconds, memory))
        count = MEASURED
    refit_seconds = 2 * cost.reading_seconds(model, job.tokens, *batching)
    eval_seconds = _evaluate_step(job, machine, 2).seconds
    seconds = count * (2 * cost.copying_seconds(nbytes) + refit_seconds + eval_seconds)
    does = f"{count} shapes: cut, refit, evaluate"
    return [*result, Step("compare", does, seconds, cost.PROCESS_BYTES + 2 * weights, 4 * nbytes)]
