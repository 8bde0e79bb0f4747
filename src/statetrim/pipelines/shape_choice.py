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
from ..artifacts.decision import BY_LAYER, Decision, MeasuredShape, Prediction
from ..artifacts.plan import Plan
from ..artifacts.scores import Scores
from ..artifacts.sensitivity import Sensitivity
from ..cut.geometry import Geometry
from ..evaluation.original import OriginalResults
from ..judging.recommendation import recommend
from ..progress import OnProgress
from ..runtime.corpus import Corpus
from ..runtime.states import StateStorage
from ..serving.capacity.compare import default_capacity, known_capacities
from ..storage.text import Sequences
from ..tasks.recall import associations
from ..version import __version__
from .by_layer import allocate_by_layer, layer_sensitivity
from .job import Job
from .observer import Observer
from .stage import Stage
from .stages import DECISION, PLAN, PRUNED, REFITTED, StageRunner

MEASURED = 3  # shapes
ROUNDED = "bfloat16"
_ROUNDED_FILE = f"scores-{ROUNDED}.json"
_PAIRS = 32  # per recall sequence, if the vocabulary is large enough
_TOKENS_PER_COLUMN = 16  # of the least-squares fit; a layer has a column per value channel


def choose_shape(job: Job, directory: Path, observer: Observer) -> StageRunner:
    """The runner of the job with the chosen shape as its target and no candidates.

    Prunes to the shapes and measures them, and writes the plans, scores and decision to
    `directory`; what an earlier run made from the same is reused. The cut to the chosen shape stays
    there, as the result of the stages "prune" and "refit".
    """
    runners = _candidate_runners(job, directory, observer)
    any_runner = next(iter(runners.values()))
    plans = {name: runner.plan(f"plan-{name}.json") for name, runner in runners.items()}
    decided_by = [plan.ensure(observer) for plan in plans.values()]
    names, predicted = list(runners), dict[str, float]()
    if predicts_shapes(job):
        prediction = Prediction.load(_prediction(any_runner, plans).ensure(observer))
        names = prediction.ranked[:MEASURED]
        predicted = {name: prediction.cost(name) for name in prediction.ranked}
    expected = ""
    if job.options.by_layer:
        layers = layer_sensitivity(any_runner, job)
        decided_by.append(layers.ensure(observer))
        by_layer = allocate_by_layer(job, Sensitivity.load(layers.artifact), observer)
        if by_layer is not None:
            expected = by_layer.expected
            observer.on_message(expected)
            by_layer_job = replace(any_runner.job, target=by_layer.target)
            runners[BY_LAYER] = replace(any_runner, job=by_layer_job, shape=BY_LAYER)
            names.append(BY_LAYER)
    points, paths, scores = [_original_shape(job)], dict[str, Path](), dict[str, Scores]()
    for name in names:
        runners[name].step = "compare"
        paths[name] = _measured_scores(runners[name]).ensure(observer)
        scores[name] = Scores.load(paths[name])
        points.append(_shape_after(runners[name].job))
        recommendation = recommend(points, scores)
        chosen = str(recommendation.chosen and recommendation.chosen.point)
        for point in points[1:]:
            if str(point) != chosen:  # so that the disk holds at most two cuts
                for stage in _cut_stages(runners[str(point)]):
                    stage.discard()
    if job.options.compares_16_bit_state:
        points.append(_rounded_shape(job))
        name = str(points[-1])
        paths[name] = _rounded_scores(any_runner).ensure(observer)
        scores[name] = Scores.load(paths[name])
        recommendation = recommend(points, scores)
    refused = {str(target): engines for target, engines in job.candidates.items()}
    lineage = {"statetrim": __version__, "source": job.model.digest, "to": str(job.options.request)}
    Decision(
        job.model.name,
        points,
        chosen,
        recommendation.reason,
        predicted,
        refused,
        lineage,
        expected,
        {name: path.name for name, path in paths.items()},
    ).save(directory / DECISION)
    observer.on_message(f"shape {recommendation.reason}")
    compared = runners[chosen]
    runner = StageRunner(
        compared.job,
        directory,
        observer,
        methods=compared.methods,
        decided_by=[*decided_by, directory / DECISION, *paths.values()],
        chosen_by=scores[chosen],
    )
    for stage, compared_stage in zip(_cut_stages(runner), _cut_stages(compared), strict=True):
        stage.adopt(compared_stage)
    return runner


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


def _prediction(runner: StageRunner, plans: Mapping[str, Stage]) -> Stage:
    """The predicted cost of each plan; written to prediction.json."""
    job, path = runner.job, runner.directory / "prediction.json"
    options, slices = job.options, job.slices
    tokens = {"fit": prediction_tokens(job), "measure": job.shape_tokens}

    def make(progress: OnProgress) -> None:
        length = options.length
        prediction = predict(
            job.model,
            {name: Plan.load(plan.artifact) for name, plan in plans.items()},
            _sources(slices.calibration, tokens["fit"], length, seed=1),
            _sources(slices.choice, tokens["measure"], length, seed=2),
            batch_size=options.batch_size,
            placement=options.placement,
            max_bytes=options.placement.free_memory // 4,
            progress=progress,
        )
        prediction.save(path)

    reads = {"tokens": tokens, "fit": slices.calibration, "measure": slices.choice}
    by_name = {"trim": options, "shapes": [*plans], **reads, "job": job.identity}
    inputs = list(plans.values())
    return Stage(path, by_name, make, inputs, "predict", "predict", "predicting")


def _sources(corpus: Corpus, tokens: int, length: int, *, seed: int) -> dict[str, Sequences]:
    """`tokens` of a text, and about as many of associative recall drawn with `seed`; the evaluation
    draws with other seeds."""
    vocabulary = len(corpus.tokenizer)
    pairs = min(_PAIRS, vocabulary // 4)
    ids, _ = associations(vocabulary, pairs, max(1, tokens // (4 * pairs)), seed=seed)
    recall = Sequences(ids, {"recall": pairs, "seed": seed, "count": len(ids)})
    return {"text": corpus.read(tokens=tokens, length=length), "recall": recall}


def _measured_scores(runner: StageRunner) -> Stage:
    """Scores of the original and of the cut of `runner.job`, in this order."""
    return runner.scores([_cut_stages(runner)[-1]], f"scores-{runner.shape}.json")


def _cut_stages(runner: StageRunner) -> list[Stage]:
    """The cut of `runner.job`, the sums of its refit and the refitted cut: by the names of a run of
    one shape, or with the shape in their names while several are compared."""
    shape = runner.shape
    plan = runner.plan(f"plan-{shape}.json" if shape else PLAN)
    cut = runner.pruned(f"cut-{shape}" if shape else PRUNED, plan)
    if not runner.job.runs_refit:
        return [cut]
    refitted = runner.refitted(cut, f"fitted-{shape}" if shape else REFITTED)
    own_sums = [] if runner.job.refits_from_original else refitted.inputs[1:]
    return [cut, *own_sums, refitted]


def _rounded_scores(runner: StageRunner) -> Stage:
    """The scores of the original with its state in bfloat16, an alternative to a cut. It is rounded
    after every token, as in decoding; rounding after every piece of a prompt costs far less."""
    storage = StateStorage(ROUNDED, piece=1)
    return replace(runner, shape=ROUNDED, step="compare").scores([], _ROUNDED_FILE, storage)


def _rounded_shape(job: Job) -> MeasuredShape:
    """The original with its state in bfloat16."""
    original = _original_shape(job)
    sequences = None
    for row in known_capacities(job.model, None, job.options.counted_in):
        if row.state_dtype == ROUNDED:
            sequences = row.fit.sequences
    size = original.state_bytes // 2
    return replace(original, state_bytes=size, sequences=sequences, state_dtype=ROUNDED)


def _original_shape(job: Job) -> MeasuredShape:
    return _shape(job, job.model.geometry, "none")


def _shape_after(job: Job) -> MeasuredShape:
    """The shape to which `job` cuts."""
    shape = _shape(job, job.after, " and ".join(job.methods))
    return replace(shape, widths=str(job.target) if job.after.widths else "")


def _shape(job: Job, geometry: Geometry, method: str) -> MeasuredShape:
    rows = known_capacities(job.model, geometry, job.options.counted_in)
    counted = default_capacity(rows, cut=True)
    return MeasuredShape(
        shape=geometry.widest,
        method=method,
        state_bytes=4 * geometry.state_numel,
        sequences=counted.fit.sequences if counted else None,
    )
