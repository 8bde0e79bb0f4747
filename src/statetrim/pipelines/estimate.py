"""The steps of a run of `trim`: what each does, and the tokens, memory and disk that it takes."""

from dataclasses import dataclass

from ..artifacts.state_sizes import weight_bytes
from ..evaluation.runner import MQAR_TOKENS
from ..evaluation.samples import EVAL_LENGTH, FIRST_LOOK
from ..maths.formatting import count_of, list_text
from ..options import takes_options
from ..storage.models import ModelLike, as_checkpoint
from .job import Job
from .options import TrimOptions
from .shape_choice import MEASURED, prediction_tokens, predicts_shapes

_PROCESS_BYTES = 600 * 2**20  # memory of Python, torch and transformers without a model
_CONTROL_SAMPLES = 8 * 16  # of random cuts, in all


@dataclass(frozen=True)
class Step:
    """One step of a run, and about what it takes."""

    name: str
    does: str
    tokens: int = 0  # that models read
    memory: int = 0  # bytes, at the peak
    disk: int = 0  # bytes written, which stay until the run ends


@takes_options(TrimOptions)
def estimate(model: ModelLike, options: TrimOptions) -> list[Step]:
    """Describe what `trim` would do with these options: the steps, and about how many tokens, how
    much memory and disk each takes (`--dry-run`).

    Nothing is run or written, and of a hub model only headers are downloaded.
    """
    job = Job.from_options(as_checkpoint(model, weights="headers"), options)
    job.check()
    return Estimate(job).steps()


class Estimate:
    """What the steps of `job` take."""

    def __init__(self, job: Job) -> None:
        self.job, self.options, self.nbytes = job, job.options, weight_bytes(job.model)
        self.weights = 0 if job.streams_weights else self.nbytes  # of one model in memory

    def memory(self, models: int) -> int:
        """Bytes of a process with the weights of `models`."""
        return _PROCESS_BYTES + models * self.weights

    def steps(self) -> list[Step]:
        """The steps of `trim` in order."""
        job, after = self.job, self.job.after
        result = [self.calibrate()] if job.calibrated_methods else []
        layers = count_of(len(after.layers), "layer")
        result.append(Step("select", f"by {list_text(job.methods)}, in {layers}"))
        if job.candidates:
            result += self.compare()
        else:
            does = f"state {after.describe_against(job.model.geometry)}"
            result.append(Step("prune", does, memory=64 * 2**20, disk=self.nbytes))
        does = "sliced equals masked, prefill equals decode"
        result.append(Step("check", does, 4 * 2 * 64, self.memory(4)))
        if job.runs_refit and not job.candidates:
            result.append(self.refit())
        if job.recovery_tokens:
            does, memory = "training, distilled from the original", self.memory(3)
            result.append(Step("recover", does, job.recovery_tokens, memory, 2 * self.nbytes))
        controls = _CONTROL_SAMPLES if self.options.control else 0
        result.append(self.evaluate(2, min(self.options.limit, 2 * FIRST_LOOK), controls))
        if job.runs_benchmark:
            result.append(Step("benchmark", "both, in turns", memory=self.memory(2)))
        return [*result, Step("report", "one page")]

    def calibrate(self) -> Step:
        job, options, before = self.job, self.options, self.job.model.geometry
        sum_bytes = 2 * 8 * len(before.layers) * before.num_k_heads * before.head_k_dim**2
        if "head" in job.target.axes:
            sum_bytes = 8 * len(before.layers) * 2 * (before.num_v_heads * before.head_v_dim) ** 2
        does = str(options.text)
        if options.recall:
            does += f", {100 * options.recall:.0f}% recall sequences"
        return Step("calibrate", does, job.tokens, self.memory(1) + sum_bytes, sum_bytes)

    def refit(self) -> Step:
        if self.job.refits_from_original:
            does = "output projections, from the same statistics"
            return Step("refit", does, memory=self.memory(0), disk=self.nbytes)
        after = self.job.after
        width = after.num_v_heads * (self.job.model.geometry.head_v_dim + after.head_v_dim)
        moments = 8 * len(after.layers) * after.num_v_heads * after.head_v_dim * width
        does, tokens = "output projections, in closed form", 2 * self.job.tokens
        return Step("refit", does, tokens, self.memory(2) + moments, self.nbytes + moments)

    def evaluate(self, models: int, samples: int, control_samples: int = 0) -> Step:
        """Evaluation of `models`, each once, because the hidden states of the original are kept, on
        as many samples as usually decide, and of random cuts on `control_samples` in all."""
        tasks = self.options.tasks
        per_sample = sum(MQAR_TOKENS if task == "mqar" else EVAL_LENGTH for task in tasks)
        tokens = (models * samples + control_samples) * per_sample
        does = f"{', '.join(tasks)} on {models} models, up to {self.options.limit} samples a task"
        return Step("evaluate", does, tokens, self.memory(2), self.nbytes)

    def compare(self) -> list[Step]:
        """Predict, and measure the best; the cut to the chosen one is the result."""
        job, count, result = self.job, len(self.job.candidates), []
        if predicts_shapes(job):
            tokens = 2 * (prediction_tokens(job) + job.shape_tokens)  # of text, and of recall
            result.append(Step("predict", f"{count} shapes", tokens, self.memory(1)))
            count = MEASURED
        if self.options.by_layer:
            layers = len(job.model.geometry.layers)
            tokens, does = (1 + 4 * layers) * 2 * job.shape_tokens, f"{layers} layers, each alone"
            result.append(Step("sensitivity", f"{does} cut", tokens, self.memory(1)))
            count += 1
        models = 1 + count + 2 * job.compares_16_bit_state
        tokens = count * 2 * job.tokens + self.evaluate(models, job.shape_samples).tokens
        does = f"{count} shapes: cut, refit, evaluate"
        return [*result, Step("compare", does, tokens, self.memory(2), 4 * self.nbytes)]
