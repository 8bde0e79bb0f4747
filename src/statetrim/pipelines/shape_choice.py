"""Choose among several shapes: predict the cost of all, then measure the three cheapest.

All share one calibration. The choice uses the text that follows the calibration text, and the final
evaluation uses the text after that.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import log1p
from pathlib import Path

from ..analysis.predict import predict
from ..artifacts.decision import Decision, MeasuredShape, Prediction
from ..artifacts.plan import Plan
from ..judging.decision import decide
from ..judging.losses import metric_loss, recall_change
from ..maths.paired import Interval
from ..runtime.loading import load_tokenizer
from ..storage.checkpoint import Checkpoint
from ..storage.text import Sequences, read_sequences
from ..tasks.recall import associations
from .estimate import free_memory
from .job import EVAL_LENGTH, Job
from .measuring import adopt_cut, delete_cut, measure_cut, plan_name, shape_name
from .observer import Observer
from .options import TrimOptions
from .stages import DECISION, StageRunner

MEASURED = 3  # shapes
TASKS = ("text", "mqar")
_PAIRS = 32  # per recall sequence, if the vocabulary is large enough
_TOKENS_PER_COLUMN = 16  # of the least-squares fit; a layer has a column per value channel


def choose_shape(job: Job, directory: Path, observer: Observer) -> Job:
    """The job with the chosen shape as its target and no candidates.

    Predicts the cost of all candidates, prunes to the three cheapest and measures them, and writes
    the plans, scores and decision to `directory`; what an earlier run finished is reused. The cut
    to the chosen shape stays there, as the result of the stages "prune" and "refit".
    """
    runners = _candidate_runners(job, directory, observer)
    plans = {
        name: runner.ensure_plan(plan_name(runner.job.after)) for name, runner in runners.items()
    }
    prediction = _predict(job, plans, directory, observer)
    refused = {str(candidate.shape): candidate.refused for candidate in job.candidates}
    measured: list[MeasuredShape] = []
    for name in prediction.ranked[:MEASURED]:
        measured.append(_measure_candidate(job, runners[name]))
        decision: Decision = decide(measured, prediction, refused)
        for candidate in measured:  # so that the disk holds at most two cuts
            if candidate.name != decision.chosen:
                delete_cut(runners[candidate.name])
    decision.save(directory / DECISION)
    observer.on_message(f"shape {decision.sentence}")
    adopt_cut(runners[decision.chosen])
    return replace(job, target=runners[decision.chosen].job.target, candidates={})


def _candidate_runners(job: Job, directory: Path, observer: Observer) -> dict[str, StageRunner]:
    """A runner for each candidate by its shape; all share the statistics in `directory`, measure
    TASKS, and refit unless the options forbid it."""
    options = replace(job.options, tasks=TASKS, refit=job.options.refit is not False)
    methods = job.calibrated_methods
    runners = {}
    for target in job.candidates.values():
        shape_job = replace(job, options=options, target=target, candidates={}, shape_tokens=0)
        name = shape_name(target.after)
        runners[name] = StageRunner(shape_job, directory, observer, methods, shape=name)
    return runners


def prediction_tokens(job: Job) -> int:
    """Tokens per source on which the prediction fits output projections."""
    columns = job.model.geometry.num_v_heads * job.model.geometry.head_v_dim
    return min(job.tokens, max(_TOKENS_PER_COLUMN * columns, 2**14))


def _predict(
    job: Job, plans: Mapping[str, Plan], directory: Path, observer: Observer
) -> Prediction:
    """The predicted cost of each plan, from prediction.json if an earlier run wrote it; else it is
    computed and written there."""
    path = directory / "prediction.json"
    observer.on_step("predict")
    if path.exists():
        observer.on_cached("predict")
        return Prediction.load(path)
    observer.on_start("predict")
    options = job.options
    fitting_data = _sources(options, job.model, prediction_tokens(job), skip=0, seed=1)
    eval_tokens = options.limit * EVAL_LENGTH
    measuring_data = _sources(options, job.model, eval_tokens, skip=job.tokens, seed=2)
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


def _sources(
    options: TrimOptions, model: Checkpoint, tokens: int, *, skip: int, seed: int
) -> dict[str, Sequences]:
    """`tokens` of the text after `skip`, and as many of recall sequences drawn with `seed`."""
    tokenizer = load_tokenizer(model)
    length = options.length
    text = read_sequences(options.text, tokenizer, tokens=tokens, length=length, skip=skip)
    return {"text": text, "recall": _recall_sequences(len(tokenizer), tokens, seed)}


def _recall_sequences(vocabulary: int, tokens: int, seed: int) -> Sequences:
    """About `tokens` of associative recall; the evaluation draws with other seeds."""
    pairs = min(_PAIRS, vocabulary // 4)
    ids, _ = associations(vocabulary, pairs, max(1, tokens // (4 * pairs)), seed=seed)
    return Sequences(ids, {"recall": pairs, "seed": seed, "count": len(ids)})


def _measure_candidate(job: Job, runner: StageRunner) -> MeasuredShape:
    """Prune, refit and evaluate one shape; its loss is the increase of NLL in nats."""
    runner.step = "compare"
    scores = measure_cut(runner)
    after, before = runner.job.after.state_numel, job.model.geometry.state_numel
    cut = scores.models[1]
    percent = metric_loss(scores, cut, "text", "perplexity").loss  # of the perplexity
    loss = Interval(
        log1p(percent.estimate / 100), log1p(percent.low / 100), log1p(percent.high / 100)
    )
    name = shape_name(runner.job.after)
    return MeasuredShape(name, after / before, loss, recall_change(scores, cut))
