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
from ..artifacts.decision import BY_LAYER, Decision, MeasuredShape, Prediction, ShapeScore
from ..artifacts.plan import Plan
from ..artifacts.scores import Score, Scores
from ..evaluation.original import OriginalResults
from ..judging.losses import headline_score, metric_loss, uninformative_flags
from ..judging.recommendation import recommend
from ..progress import OnProgress
from ..runtime.corpus import Corpus
from ..runtime.states import StateStorage
from ..serving.capacity.compare import default_capacity, known_capacities
from ..storage.atomic import remove
from ..storage.auxiliary_files import copy_files
from ..storage.output import is_complete, remove_empty_partial
from ..storage.text import Sequences
from ..tasks.recall import associations
from ..tasks.unit import UNITS
from ..version import __version__
from .by_layer import allocate_by_layer
from .estimate import free_memory
from .job import Job
from .observer import Observer
from .stages import DECISION, PLAN, PRUNED, REFITTED, StageRunner, run_stage

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
    plans, any_runner = {}, next(iter(runners.values()))
    for name, runner in runners.items():
        plans[name] = runner.ensure_plan(f"plan-{name}.json")
    names, predicted = list(runners), dict[str, float]()
    if predicts_shapes(job):
        prediction = _predict(job, plans, directory, observer)
        names = prediction.ranked[:MEASURED]
        predicted = {name: prediction.cost(name) for name in prediction.ranked}
    expected = ""
    if job.options.by_layer:
        statistics = any_runner.ensure_statistics()
        by_layer = allocate_by_layer(job, statistics, directory, observer)
        if by_layer is not None:
            expected = by_layer.expected
            observer.on_message(expected)
            by_layer_job = replace(any_runner.job, target=by_layer.target)
            runners[BY_LAYER] = replace(any_runner, job=by_layer_job, shape=BY_LAYER)
            names.append(BY_LAYER)
    points: list[MeasuredShape] = []
    for name in names:
        runners[name].step = "compare"
        scores = _measure_cut(runners[name])
        points = points or [_measured_shape(job, scores, 0)]
        points.append(_measured_shape(runners[name].job, scores, 1))
        recommendation = recommend(points)
        chosen = str(recommendation.chosen and recommendation.chosen.point)
        for point in points[1:]:
            if str(point) != chosen:  # so that the disk holds at most two cuts
                for path in _result_names(runners[str(point)]):
                    remove(path)
    if job.options.compares_16_bit_state:
        points.append(_measure_16_bit_state(any_runner))
        recommendation = recommend(points)
    refused = {str(target): engines for target, engines in job.candidates.items()}
    lineage = {"statetrim": __version__, "source": job.model.digest, "to": str(job.options.request)}
    Decision(
        job.model.name, points, chosen, recommendation.reason, predicted, refused, lineage, expected
    ).save(directory / DECISION)
    observer.on_message(f"shape {recommendation.reason}")
    _adopt_cut(runners[chosen])
    return replace(job, target=runners[chosen].job.target, candidates={})


def _candidate_runners(job: Job, directory: Path, observer: Observer) -> dict[str, StageRunner]:
    """A runner for each candidate by its shape; all share the statistics in `directory` and the
    results of the original, and refit unless the options forbid it."""
    original = OriginalResults(job.model, job.options.placement)
    options = replace(job.options, refit=job.options.refit is not False)
    runners = {}
    for target in job.candidates:
        runners[str(target)] = StageRunner(
            replace(job, options=options, target=target, candidates={}),
            directory,
            observer,
            methods=job.calibrated_methods,
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
    """The predicted cost of each plan; written to prediction.json."""
    path, options, slices = directory / "prediction.json", job.options, job.slices

    def make(progress: OnProgress) -> None:
        length = options.length
        prediction = predict(
            job.model,
            plans,
            _sources(slices.calibration, prediction_tokens(job), length, seed=1),
            _sources(slices.choice, job.shape_tokens, length, seed=2),
            batch_size=options.batch_size,
            placement=options.placement,
            max_bytes=free_memory(options.placement) // 4,
            progress=progress,
        )
        prediction.save(path)

    run_stage(observer, "predict", "predict", path, "predicting", make)
    return Prediction.load(path)


def _sources(corpus: Corpus, tokens: int, length: int, *, seed: int) -> dict[str, Sequences]:
    """`tokens` of a text, and about as many of associative recall drawn with `seed`; the evaluation
    draws with other seeds."""
    vocabulary = len(corpus.tokenizer)
    pairs = min(_PAIRS, vocabulary // 4)
    ids, _ = associations(vocabulary, pairs, max(1, tokens // (4 * pairs)), seed=seed)
    recall = Sequences(ids, {"recall": pairs, "seed": seed, "count": len(ids)})
    return {"text": corpus.read(tokens=tokens, length=length), "recall": recall}


def _measure_cut(runner: StageRunner) -> Scores:
    """Scores of the original and of the cut of `runner.job`, in this order. The cut, and its
    refitted copy, stay in `runner.directory`."""
    name = runner.shape
    path = runner.directory / f"scores-{name}.json"
    remove_empty_partial(path)
    if not is_complete(path):
        cut = runner.ensure_pruned(f"cut-{name}", runner.ensure_plan(f"plan-{name}.json"))
        if runner.job.runs_refit:
            cut = runner.ensure_refitted(cut, f"fitted-{name}")
        runner.ensure_scores([cut], path)
    return Scores.load(path)


def _measure_16_bit_state(runner: StageRunner) -> MeasuredShape:
    """The scores of the original with its state in bfloat16, an alternative to a cut. It is rounded
    after every token, as in decoding; rounding after every piece of a prompt costs far less."""
    storage, path = StateStorage("bfloat16", piece=1), runner.directory / "scores-bfloat16.json"
    model = runner.job.model
    runner = replace(runner, shape=storage.dtype, step="compare")
    runner.ensure_scores([model], path, storage)
    scores = Scores.load(path)
    original = _measured_shape(runner.job, scores, 0)
    rounded = [
        row.fit.sequences
        for row in known_capacities(model, None, runner.job.options.counted_in)
        if row.state_dtype == storage.dtype
    ]
    return replace(
        original,
        scores=_measured_shape(runner.job, scores, 1).scores,
        state_bytes=original.state_bytes // 2,
        sequences=rounded[0] if rounded else None,
        state_dtype=storage.dtype,
    )


def _adopt_cut(runner: StageRunner) -> None:
    """Rename what `_measure_cut` made to the names under which the stages of a run look for it, so
    that nothing is made twice. A killed run continues with what is left."""
    if not (runner.directory / PLAN).exists():
        copy_files({PLAN: runner.directory / f"plan-{runner.shape}.json"}, runner.directory)
    for path, name in _result_names(runner).items():
        if path.exists():
            path.rename(runner.directory / name)


def _result_names(runner: StageRunner) -> dict[Path, str]:
    """The files of a measured cut, with their names in a run of one shape."""
    name, directory = runner.shape, runner.directory
    return {
        directory / f"cut-{name}": PRUNED,
        directory / f"fitted-{name}-statistics.safetensors": f"{REFITTED}-statistics.safetensors",
        directory / f"fitted-{name}": REFITTED,
    }


def _measured_shape(job: Job, scores: Scores, model_index: int) -> MeasuredShape:
    """The scores of one model: 0 is the original, 1 the cut of `job`."""
    geometry = job.model.geometry if model_index == 0 else job.after
    measured = {}
    for score in scores.scores:
        if score.model == scores.models[model_index]:
            measured[f"{score.task} {score.metric}"] = _shape_score(scores, score)
    rows = known_capacities(job.model, geometry, job.options.counted_in)
    counted = default_capacity(rows, cut=True)
    return MeasuredShape(
        keep=geometry.head_k_dim,
        keep_values=geometry.head_v_dim,
        method="none" if model_index == 0 else " and ".join(job.methods),
        state_bytes=4 * geometry.state_numel,
        scores=measured,
        widths=str(job.target) if model_index and geometry.widths else "",
        sequences=counted.fit.sequences if counted else None,
    )


def _shape_score(scores: Scores, score: Score) -> ShapeScore:
    """A score with an interval: the original's score changed by each end of the loss interval."""
    low = high = None
    if score.model != scores.baseline:
        original = headline_score(scores, scores.baseline, score.task, score.metric).value
        loss = metric_loss(scores, score.model, score.task, score.metric).loss
        change, unit = -loss if score.higher_is_better else loss, UNITS[score.unit]
        low, high = unit.value_after(original, change.low), unit.value_after(original, change.high)
    value = headline_score(scores, score.model, score.task, score.metric).value
    is_uninformative, _ = uninformative_flags(scores, score.task, score.metric)
    return ShapeScore(value, low, high, score.unit, score.higher_is_better, is_uninformative)
