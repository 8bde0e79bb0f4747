"""Which of several shapes: all are predicted from one calibration, the best three are measured.

The text after that of calibration decides; the final evaluation reads what follows it.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import log1p
from pathlib import Path

from ..analysis.predict import predict
from ..artifacts.decision import Candidate, Decision, Prediction, decide
from ..artifacts.losses import metric_loss, recall_change
from ..artifacts.plan import Plan
from ..maths.paired import Interval
from ..runtime.loading import load_tokenizer
from ..storage.text import Sequences, read_sequences
from ..tasks.recall import associations
from .estimate import free_memory
from .job import EVAL_LENGTH, Job
from .measuring import measure_cut, plan_name, shape_name
from .observer import Observer
from .stages import DECISION, StageRunner

MEASURED = 3
TASKS = ("text", "mqar")
_PAIRS = 32  # of a recall sequence, where the vocabulary has as many
_TOKENS_PER_COLUMN = 16  # of the fit: a layer has as many columns as value channels


def choose_shape(job: Job, directory: Path, observer: Observer) -> Job:
    """The job with the shape that was chosen; what decided it is written to `directory`."""
    runners = _candidate_runners(job, directory, observer)
    plans = {
        name: runner.ensure_plan(plan_name(runner.job.after)) for name, runner in runners.items()
    }
    prediction = _predict(job, plans, directory, observer)
    contenders = [_measure_contender(job, runners[name]) for name in prediction.ranked[:MEASURED]]
    refused = {str(candidate.shape): candidate.refused for candidate in job.candidates}
    decision: Decision = decide(contenders, prediction, refused)
    decision.save(directory / DECISION)
    observer.on_message(f"shape {decision.sentence}")
    return replace(job, target=runners[decision.chosen].job.target, candidates={})


def _candidate_runners(job: Job, directory: Path, observer: Observer) -> dict[str, StageRunner]:
    """A run for each shape; they share the statistics."""
    refit = job.options.refit is not False
    options = replace(job.options, tasks=TASKS, refit=refit)
    jobs = [
        replace(job, options=options, target=target, candidates={}, shape_tokens=0)
        for target in job.candidates.values()
    ]
    methods = job.calibrated_methods
    jobs_by_name = {shape_name(candidate_job.after): candidate_job for candidate_job in jobs}
    return {
        name: StageRunner(candidate_job, directory, observer, methods, shape=name)
        for name, candidate_job in jobs_by_name.items()
    }


def prediction_tokens(job: Job) -> int:
    """Tokens of each source that the prediction fits to: several for each column of a layer."""
    columns = job.model.geometry.num_v_heads * job.model.geometry.head_v_dim
    return min(job.tokens, max(_TOKENS_PER_COLUMN * columns, 2**14))


def _predict(
    job: Job, plans: Mapping[str, Plan], directory: Path, observer: Observer
) -> Prediction:
    path = directory / "prediction.json"
    observer.on_step("predict")
    if path.exists():
        observer.on_cached("predict")
        return Prediction.load(path)
    observer.on_start("predict")
    options = job.options
    tokens = prediction_tokens(job)
    tokenizer = load_tokenizer(job.model)
    fitting_data, measuring_data = (
        {
            "text": read_sequences(
                options.text, tokenizer, tokens=count, length=options.length, skip=skip
            ),
            "recall": _recall_sequences(len(tokenizer), count, seed),
        }
        for count, skip, seed in ((tokens, 0, 1), (options.limit * EVAL_LENGTH, job.tokens, 2))
    )
    with observer.progress("predicting") as progress:
        prediction = predict(
            job.model,
            plans,
            fitting_data,
            measuring_data,
            batch_size=options.batch_size,
            placement=options.placement,
            max_bytes=free_memory(options.placement) // 4,
            progress=progress,
        )
    prediction.save(path)
    return prediction


def _recall_sequences(vocabulary: int, tokens: int, seed: int) -> Sequences:
    """Associative recall; the evaluation's sequences are drawn from another seed."""
    pairs = min(_PAIRS, vocabulary // 4)
    ids, _ = associations(vocabulary, pairs, max(1, tokens // (4 * pairs)), seed=seed)
    return Sequences(ids, {"recall": pairs, "seed": seed, "count": len(ids)})


def _measure_contender(job: Job, runner: StageRunner) -> Candidate:
    runner.step = "compare"
    scores = measure_cut(runner)
    after, before = runner.job.after.state_numel, job.model.geometry.state_numel
    cut = scores.models[1]
    perplexity_loss = metric_loss(scores, cut, "text", "perplexity").loss
    loss = Interval(
        *(
            log1p(x / 100)
            for x in (perplexity_loss.estimate, perplexity_loss.low, perplexity_loss.high)
        )
    )
    name = shape_name(runner.job.after)
    return Candidate(name, after / before, loss, recall_change(scores, cut))
