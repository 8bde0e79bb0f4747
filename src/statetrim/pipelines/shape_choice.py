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
from ..storage.text import Sequences, sequences
from ..tasks.recall import associations
from .estimate import free_memory
from .job import SEQUENCE, Job
from .measuring import measure, plan_name, shape_name
from .observer import Watch
from .stages import DECISION, Run

MEASURED = 3
TASKS = ("text", "mqar")
_PAIRS = 32  # of a recall sequence, where the vocabulary has as many
_TOKENS_A_COLUMN = 16  # of the fit: a layer has as many columns as value channels


def settled(job: Job, directory: Path, watch: Watch) -> Job:
    """The job with the shape that was chosen; what decided it is written to `directory`."""
    runs = _runs(job, directory, watch)
    plans = {name: run.plan(plan_name(run.job.after)) for name, run in runs.items()}
    prediction = _predicted(job, plans, directory, watch)
    measured = [_contender(job, runs[name]) for name in prediction.ranked[:MEASURED]]
    refused = {str(one.shape): one.refused for one in job.candidates}
    found: Decision = decide(measured, prediction, refused)
    found.save(directory / DECISION)
    watch.tells(f"shape {found.sentence}")
    return replace(job, target=runs[found.chosen].job.target, candidates={})


def _runs(job: Job, directory: Path, watch: Watch) -> dict[str, Run]:
    """A run for each shape; they share the statistics."""
    refit = job.options.refit is not False
    options = replace(job.options, tasks=TASKS, refit=refit)
    jobs = [
        replace(job, options=options, target=target, candidates={}, decided_on=0)
        for target in job.candidates.values()
    ]
    methods = job.calibrated_methods
    named = {shape_name(one.after): one for one in jobs}
    return {name: Run(one, directory, watch, methods, shape=name) for name, one in named.items()}


def fitting_tokens(job: Job) -> int:
    """Tokens of each source that the prediction fits to: several for each column of a layer."""
    columns = job.model.geometry.num_v_heads * job.model.geometry.head_v_dim
    return min(job.tokens, max(_TOKENS_A_COLUMN * columns, 2**14))


def _predicted(job: Job, plans: Mapping[str, Plan], directory: Path, watch: Watch) -> Prediction:
    path = directory / "prediction.json"
    watch.enters("predict")
    if path.exists():
        watch.kept("predict")
        return Prediction.load(path)
    watch.begins("predict")
    options = job.options
    tokens = fitting_tokens(job)
    tokenizer = load_tokenizer(job.model)
    fitted, measured = (
        {
            "text": sequences(
                options.text, tokenizer, tokens=count, length=options.length, skip=skip
            ),
            "recall": _recall(len(tokenizer), count, seed),
        }
        for count, skip, seed in ((tokens, 0, 1), (options.limit * SEQUENCE, job.tokens, 2))
    )
    with watch.progress("predicting") as progress:
        found = predict(
            job.model,
            plans,
            fitted,
            measured,
            batch_size=options.batch_size,
            placement=options.placement,
            max_bytes=free_memory(options.placement) // 4,
            progress=progress,
        )
    found.save(path)
    return found


def _recall(vocabulary: int, tokens: int, seed: int) -> Sequences:
    """Associative recall; the evaluation's sequences are drawn from another seed."""
    pairs = min(_PAIRS, vocabulary // 4)
    ids, _ = associations(vocabulary, pairs, max(1, tokens // (4 * pairs)), seed=seed)
    return Sequences(ids, {"recall": pairs, "seed": seed, "count": len(ids)})


def _contender(job: Job, run: Run) -> Candidate:
    run.step = "compare"
    scores = measure(run)
    after, before = run.job.after.state_numel, job.model.geometry.state_numel
    small = scores.models[1]
    percent = metric_loss(scores, small, "text", "perplexity").loss
    loss = Interval(*(log1p(x / 100) for x in (percent.estimate, percent.low, percent.high)))
    name = shape_name(run.job.after)
    return Candidate(name, after / before, loss, recall_change(scores, small))
