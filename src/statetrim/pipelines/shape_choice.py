"""Compare several shapes and choose one.

Shapes that are listed are all measured. Of the shapes within a share of the state, if there are
more than three, the cost is predicted, and the three cheapest are measured. All share one
calibration. The choice uses the text that follows the calibration text, and the final evaluation
the text after that.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..analysis.predict import predict
from ..artifacts.decision import Decision, MeasuredShape, Prediction
from ..artifacts.plan import Plan
from ..evaluation.runner import OriginalResults
from ..judging.recommendation import recommend
from ..runtime.corpus import Corpus
from ..storage.text import Sequences
from ..tasks.recall import associations
from ..version import __version__
from .estimate import free_memory
from .job import Job
from .measuring import adopt_cut, delete_cut, measure_cut, measured_shape, plan_name
from .observer import Observer
from .stages import DECISION, StageRunner

MEASURED = 3  # shapes
_PAIRS = 32  # per recall sequence, if the vocabulary is large enough
_TOKENS_PER_COLUMN = 16  # of the least-squares fit; a layer has a column per value channel


def choose_shape(job: Job, directory: Path, observer: Observer) -> Job:
    """The job with the chosen shape as its target and no candidates.

    Prunes to the shapes and measures them, and writes the plans, scores and decision to
    `directory`; what an earlier run finished is reused. The cut to the chosen shape stays there, as
    the result of the stages "prune" and "refit".
    """
    runners = _candidate_runners(job, directory, observer)
    plans = {}
    for name, runner in runners.items():
        plans[name] = runner.ensure_plan(plan_name(runner.job.target))
    names, predicted = list(runners), dict[str, float]()
    if predicts_shapes(job):
        prediction = _predict(job, plans, directory, observer)
        names = prediction.ranked[:MEASURED]
        predicted = {name: prediction.cost(name) for name in prediction.ranked}
    points: list[MeasuredShape] = []
    for name in names:
        runners[name].step = "compare"
        scores = measure_cut(runners[name])
        points = points or [measured_shape(job, scores, 0)]
        points.append(measured_shape(runners[name].job, scores, 1))
        recommendation = recommend(points)
        chosen = str(recommendation.chosen and recommendation.chosen.point)
        for point in points[1:]:  # so that the disk holds at most two cuts
            if str(point) != chosen:
                delete_cut(runners[str(point)])
    refused = {str(candidate.shape): candidate.refused for candidate in job.candidates}
    lineage = {"statetrim": __version__, "source": job.model.digest, "to": str(job.options.request)}
    Decision(
        job.model.name, points, chosen, recommendation.reason, predicted, refused, lineage
    ).save(directory / DECISION)
    observer.on_message(f"shape {recommendation.reason}")
    adopt_cut(runners[chosen])
    return replace(job, target=runners[chosen].job.target, candidates={})


def _candidate_runners(job: Job, directory: Path, observer: Observer) -> dict[str, StageRunner]:
    """A runner for each candidate by its shape; all share the statistics in `directory` and the
    results of the original, and refit unless the options forbid it."""
    original = OriginalResults(job.model, job.options.placement)
    options = replace(job.options, refit=job.options.refit is not False)
    methods = job.calibrated_methods
    runners = {}
    for target in job.candidates.values():
        shape_job = replace(job, options=options, target=target, candidates={})
        runners[str(target)] = StageRunner(
            shape_job,
            directory,
            observer,
            methods,
            shape=str(target),
            evaluated=job.slices.choice,
            original=original,
        )
    return runners


def predicts_shapes(job: Job) -> bool:
    """Whether the costs of the shapes within a share are predicted, because there are more than can
    be measured; shapes that the options list are all measured."""
    return job.options.request.share is not None and len(job.candidates) > MEASURED


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
    slices, length = job.slices, options.length
    fitting_data = _sources(slices.calibration, prediction_tokens(job), length, seed=1)
    measuring_data = _sources(slices.choice, job.shape_tokens, length, seed=2)
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


def _sources(corpus: Corpus, tokens: int, length: int, *, seed: int) -> dict[str, Sequences]:
    """`tokens` of a text, and as many of recall sequences drawn with `seed`."""
    text = corpus.read(tokens=tokens, length=length)
    return {"text": text, "recall": _recall_sequences(len(corpus.tokenizer), tokens, seed)}


def _recall_sequences(vocabulary: int, tokens: int, seed: int) -> Sequences:
    """About `tokens` of associative recall; the evaluation draws with other seeds."""
    pairs = min(_PAIRS, vocabulary // 4)
    ids, _ = associations(vocabulary, pairs, max(1, tokens // (4 * pairs)), seed=seed)
    return Sequences(ids, {"recall": pairs, "seed": seed, "count": len(ids)})
