"""The steps of a run of `trim`, with an estimate of what each takes."""

from ..artifacts.state_sizes import weight_bytes
from ..evaluation.runner import MQAR_TOKENS
from ..evaluation.samples import FIRST_LOOK
from ..options import takes_options
from ..storage.models import ModelLike, as_checkpoint
from . import estimate as cost
from .estimate import Machine, Step
from .job import EVAL_LENGTH, RECOVERY_BATCH_SIZE, Job
from .options import TrimOptions
from .shape_choice import MEASURED, prediction_tokens, predicts_shapes


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
    return _Estimate(job, machine).steps()


class _Estimate:
    """What the steps of `job` take on `machine`."""

    def __init__(self, job: Job, machine: Machine) -> None:
        self.job, self.options, self.machine = job, job.options, machine
        self.nbytes = weight_bytes(job.model)
        self.weights = 0 if job.streams_weights else self.nbytes  # of one model in memory
        self.process = cost.PROCESS_BYTES

    def read(self, tokens: int, batch_size: int = 0, length: int = 0) -> float:
        """Seconds of a forward pass, in the job's batches unless others are given."""
        batching = batch_size or self.options.batch_size, length or self.options.length
        return cost.reading_seconds(self.job.model, tokens, *batching, self.machine)

    def steps(self) -> list[Step]:
        job, after = self.job, self.job.after
        result = [self.calibrate()] if job.calibrated_methods else []
        heads = len(after.layers) * after.num_k_heads
        result.append(Step("select", f"{' and '.join(job.methods)}, {heads} heads", heads * 0.01))
        if job.candidates:
            result += self.compare()
        else:
            shape = after.describe_against(job.model.geometry)
            seconds = cost.copying_seconds(self.nbytes)
            result.append(Step("prune", f"state {shape}", seconds, 64 * 2**20, self.nbytes))
        does, seconds = "sliced equals masked, prefill equals decode", 4 * self.read(2 * 64, 1, 64)
        result.append(Step("check", does, seconds, self.process + 4 * self.weights))
        if job.runs_refit and not job.candidates:
            result.append(self.refit())
        if job.recovery_tokens:
            # The student's forward and backward pass and the teacher's forward pass.
            seconds = 4 * self.read(job.recovery_tokens, RECOVERY_BATCH_SIZE)
            does = f"{job.recovery_tokens:,} tokens, distilled from the original"
            memory = self.process + 3 * self.weights
            result.append(Step("recover", does, seconds, memory, 2 * self.nbytes))
        result.append(self.evaluate(2, min(self.options.limit, 2 * FIRST_LOOK), 8 * 16))
        if job.runs_benchmark:
            seconds, memory = 60 * self.read(64 * 16, 16, 64), self.process + 2 * self.weights
            result.append(Step("benchmark", "both, in turns", seconds, memory))
        return [*result, Step("report", "one page", 5.0)]

    def calibrate(self) -> Step:
        job, options, before = self.job, self.options, self.job.model.geometry
        sum_bytes = 2 * 8 * len(before.layers) * before.num_k_heads * before.head_k_dim**2
        if job.removes_heads:
            sum_bytes = 8 * len(before.layers) * 2 * (before.num_v_heads * before.head_v_dim) ** 2
        does = f"{job.tokens:,} tokens of {options.text}"
        if options.recall:
            does += f", {100 * options.recall:.0f}% recall sequences"
        memory = self.process + self.weights + sum_bytes
        return Step("calibrate", does, self.read(job.tokens), memory, sum_bytes)

    def refit(self) -> Step:
        if self.job.removes_heads:  # uses the statistics of calibration
            does = "output projections, from the same statistics"
            seconds = cost.copying_seconds(self.nbytes)
            return Step("refit", does, seconds, self.process, self.nbytes)
        after = self.job.after
        width = after.num_v_heads * (self.job.model.geometry.head_v_dim + after.head_v_dim)
        moments = 8 * len(after.layers) * after.num_v_heads * after.head_v_dim * width
        does, seconds = "output projections, in closed form", 2 * self.read(self.job.tokens)
        memory = self.process + 2 * self.weights + moments
        return Step("refit", does, seconds, memory, self.nbytes + moments)

    def evaluate(self, models: int, samples: int, of_controls: int = 0) -> Step:
        """Evaluation of `models`, each once, because the hidden states of the original are kept, on
        as many samples as usually decide, and of random cuts on `of_controls` samples in all."""
        tasks = self.options.tasks
        tokens = sum(MQAR_TOKENS if task == "mqar" else EVAL_LENGTH for task in tasks)
        controls = of_controls if self.options.control else 0
        seconds = self.read((models * samples + controls) * tokens, 8, EVAL_LENGTH)
        does = f"{', '.join(tasks)} on {models} models, up to {self.options.limit} samples a task"
        return Step("evaluate", does, seconds, self.process + 2 * self.weights, self.nbytes)

    def compare(self) -> list[Step]:
        """The prediction, which runs every mixer once per shape, and pruning, refitting and
        measuring the best; the cut to the chosen one is the result."""
        job, count, result = self.job, len(self.job.candidates), []
        if predicts_shapes(job):
            tokens = prediction_tokens(job) + job.shape_tokens
            seconds, memory = (2 + count) * self.read(tokens), self.process + self.weights
            result.append(Step("predict", f"{count} shapes", seconds, memory))
            count = MEASURED
        if self.options.by_layer:
            layers = len(job.model.geometry.layers)
            seconds = (1 + 4 * layers) * self.read(2 * job.shape_tokens, 8, EVAL_LENGTH)
            does, memory = f"{layers} layers, each cut alone", self.process + self.weights
            result.append(Step("sensitivity", does, seconds, memory))
            count += 1
        seconds = 2 * cost.copying_seconds(self.nbytes) + 2 * self.read(job.tokens)
        # Rounding the state after every token takes about twice as long.
        models = 1 + count + 2 * self.options.compares_16_bit_state
        seconds = count * seconds + self.evaluate(models, job.shape_samples).seconds
        does, memory = f"{count} shapes: cut, refit, evaluate", self.process + 2 * self.weights
        return [*result, Step("compare", does, seconds, memory, 4 * self.nbytes)]
