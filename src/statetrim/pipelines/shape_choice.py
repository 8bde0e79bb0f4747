"""Compare several cuts and choose one.

Shapes that are listed are all measured. Of the cuts that reach a goal, if there are more than
three, the cost is predicted, and the three cheapest are measured, one with fewer heads among them
where value heads share a key head. If a flag of the engine stores the state in fewer bits, that is
measured first, without a cut. All share one calibration. The choice uses the text that follows the
calibration text, and the final evaluation the text after that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..analysis.predict import predict
from ..artifacts.decision import BY_LAYER, Decision, MeasuredShape, NoCutNeeded, Prediction
from ..artifacts.plan import Plan
from ..artifacts.scores import Scores
from ..artifacts.sensitivity import Sensitivity
from ..artifacts.state_sizes import DTYPE_BYTES
from ..cut.geometry import Geometry
from ..errors import StatetrimError
from ..evaluation.runner import OriginalResults
from ..judging.limits import LimitStatus, metric_label
from ..judging.recommendation import JudgedCut, judge_point, recommend
from ..progress import OnProgress
from ..runtime.corpus import Corpus
from ..runtime.states import StateStorage
from ..serving.candidates import FLAG_DTYPE
from ..serving.capacity.compare import known_capacities
from ..storage.text import Sequences
from ..tasks.recall import associations
from ..version import __version__
from .by_layer import allocate_by_layer, layer_sensitivity
from .job import Job
from .stage import Observer, Stage
from .stages import DECISION, StageRunner

MEASURED = 3  # shapes
_PAIRS = 32  # per recall sequence, if the vocabulary is large enough
_TOKENS_PER_COLUMN = 16  # of the least-squares fit; a layer has a column per value channel


def choose_shape(job: Job, directory: Path, observer: Observer) -> StageRunner:
    """The runner of the job with the chosen cut as its target and no candidates. Plans, scores and
    decision are written to `directory`; what an earlier run made from the same is reused. The
    chosen cut is the result of the stages "prune" and "refit". Raises NoCutNeeded if a flag of the
    engine alone reaches the goal within the limits."""
    text, original = job.slices.choice, OriginalResults(job.model, job.options.placement)
    common = StageRunner(job, directory, observer, evaluated=text, original=original)
    points, paths, scores = points_without_cut(job), dict[str, Path](), dict[str, Scores]()
    for point in points[1:]:
        # Rounded after every token, as in decoding; after every piece of a prompt costs far less.
        stored = StateStorage(FLAG_DTYPE, piece=1)
        rounded = replace(common, step="compare", shape=FLAG_DTYPE)
        stage = rounded.scores(None, f"scores-{FLAG_DTYPE}.json", stored)
        paths[str(point)] = stage.ensure(observer)
        scores[str(point)] = Scores.load(paths[str(point)])
        judged = judge_point(points[0], point, scores[str(point)])
        job = _after_flags(job, judged, directory, paths, scores)
    runners = _candidate_runners(job, common)
    any_runner = next(iter(runners.values()))
    plans = {name: runner.plan() for name, runner in runners.items()}
    decided_by = [plan.ensure(observer) for plan in plans.values()]
    names, predicted = list(runners), dict[str, float]()
    if predicts_shapes(job):
        prediction = Prediction.load(_prediction(any_runner, plans).ensure(observer))
        with_heads = [name for name in names if "head" in runners[name].job.target.axes]
        shares_keys = job.model.geometry.group > 1
        names = shortlist(prediction.ranked, with_heads if shares_keys else [])
        predicted = {name: prediction.cost(name) for name in prediction.ranked}
    points += points_of_cuts(job)
    expected = ""
    if job.options.by_layer:
        layers = layer_sensitivity(any_runner, job)
        decided_by.append(layers.ensure(observer))
        by_layer = allocate_by_layer(job, Sensitivity.load(layers.artifact), observer)
        if by_layer is not None:
            target, expected = by_layer
            observer.on_message(expected)
            by_layer_job = replace(any_runner.job, target=target)
            points.append(_point_of_cut(by_layer_job))
            names.append(str(points[-1]))
            runners[names[-1]] = replace(any_runner, job=by_layer_job, shape=BY_LAYER)
    for name in names:
        runner = runners[name]
        runner.step = "compare"
        cut = _cut_stages(runner)[-1]
        paths[name] = runner.scores(cut, f"scores-{runner.shape}.json").ensure(observer)
        scores[name] = Scores.load(paths[name])
        recommendation = recommend(points, scores)
        chosen = str(recommendation.chosen and recommendation.chosen.point)
        for other in runners.keys() & scores.keys() - {chosen}:
            for stage in _cut_stages(runners[other]):  # so that the disk holds at most two cuts
                stage.discard()
    refused = {name: job.candidates.get(runner.job.target, ()) for name, runner in runners.items()}
    decision = Decision(
        job.model.name,
        points,
        chosen,
        recommendation.reason,
        predicted,
        refused,
        _lineage(job),
        expected,
        {name: path.name for name, path in paths.items()},
    )
    decision.save(directory / DECISION)
    observer.on_message(f"chosen: {recommendation.reason}")
    compared = runners[chosen]
    runner = StageRunner(
        compared.job,
        directory,
        observer,
        methods=compared.methods,
        decided_by=[*decided_by, directory / DECISION, *paths.values()],
        decision=decision,
    )
    for stage, compared_stage in zip(_cut_stages(runner), _cut_stages(compared), strict=True):
        stage.adopt(compared_stage)
    return runner


def _after_flags(
    job: Job,
    flags: JudgedCut,
    directory: Path,
    paths: Mapping[str, Path],
    scores: Mapping[str, Scores],
) -> Job:
    """The job to continue with, after the original with a 16-bit state was measured: with cuts that
    have one, unless it loses too much. Writes the decision and raises NoCutNeeded if that is
    enough."""
    assert job.goal is not None
    engine, point = job.options.engine, flags.point
    if flags.limit_status is LimitStatus.BEYOND:
        try:
            return job.in_default_dtype() if job.flag_dtype else job
        except StatetrimError as error:
            text = f"a {point.state_dtype} state loses too much here, and with the engine's default"
            raise StatetrimError(f"{text} {error}") from None
    if job.flag_dtype or not flags.is_within:
        return job
    flag = f"{engine.state_dtype_flag} {point.state_dtype}"
    command = engine.serve_command(str(job.model.path), flag)
    sentence = f"no cut needed for {job.goal.request}: serve the original with {flag}"
    if flags.worst:
        sentence += f" ({metric_label(flags.worst)}: {flags.worst.sentence})"
    points = points_without_cut(job)
    files = {name: path.name for name, path in paths.items()}
    decision = Decision(job.model.name, points, None, sentence, lineage=_lineage(job), files=files)
    decision.save(directory / DECISION)
    message = f"{sentence}: {command}; to cut anyway, add --state-dtype float32"
    raise NoCutNeeded(message, decision, scores)


def _lineage(job: Job) -> dict[str, str]:
    return {"statetrim": __version__, "source": job.model.digest, "to": str(job.options.request)}


def _candidate_runners(job: Job, common: StageRunner) -> dict[str, StageRunner]:
    """A runner for each candidate; all share the statistics and the results of the original."""
    options = replace(job.options, refit=job.options.refit is not False)
    runners = {}
    for target in job.candidates:
        candidate = replace(job, options=options, target=target, candidates={})
        runners[str(_point_of_cut(candidate))] = replace(
            common,
            job=candidate,
            methods=job.calibrated_methods,
            shape=str(target).replace(":", "-"),
        )
    return runners


def shortlist(ranked: Sequence[str], with_heads: Sequence[str]) -> list[str]:
    """The cuts to measure, of those `ranked` by predicted cost: the three cheapest. If no cut
    `with_heads` removed is among them, the cheapest of these takes the third place: the error of
    a layer's output overstates what heads cost where they share a key head."""
    chosen = list(ranked[:MEASURED])
    if with_heads and not set(chosen) & set(with_heads):
        chosen[-1] = min(with_heads, key=ranked.index)
    return chosen


def predicts_shapes(job: Job) -> bool:
    """Whether costs are predicted: shapes that the options list are measured, and so are few."""
    return job.options.request.is_goal and len(job.candidates) > MEASURED


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
            prediction_sources(slices.calibration, tokens["fit"], length, seed=1),
            prediction_sources(slices.choice, tokens["measure"], length, seed=2),
            batch_size=options.batch_size,
            placement=options.placement,
            max_bytes=options.placement.free_memory // 4,
            progress=progress,
        )
        prediction.save(path)

    reads = {"tokens": tokens, "fit": slices.calibration, "measure": slices.choice}
    by_name = {"trim": options, "shapes": [*plans], **reads, "job": job.identity}
    inputs = list(plans.values())
    return Stage(path, by_name, make, inputs, "predict", "predict")


def prediction_sources(
    corpus: Corpus, tokens: int, length: int, *, seed: int
) -> dict[str, Sequences]:
    """`tokens` of a text, and about as many of associative recall drawn with `seed`; the evaluation
    draws with other seeds."""
    vocabulary = len(corpus.tokenizer)
    pairs = min(_PAIRS, vocabulary // 4)
    ids, _ = associations(vocabulary, pairs, max(1, tokens // (4 * pairs)), seed=seed)
    recall = Sequences(ids, {"recall": pairs, "seed": seed, "count": len(ids)})
    return {"text": corpus.read(tokens=tokens, length=length), "recall": recall}


def _cut_stages(runner: StageRunner) -> list[Stage]:
    """The cut of `runner.job`, the sums of its refit and the refitted cut."""
    cut = runner.pruned(runner.plan())
    if not runner.job.runs_refit:
        return [cut]
    refitted = runner.refitted(cut)
    own_sums = [] if runner.job.refits_from_original else refitted.inputs[1:]
    return [cut, *own_sums, refitted]


def points_without_cut(job: Job) -> list[MeasuredShape]:
    """What is known of the original, and if that is compared, with its state in bfloat16."""
    dtypes = [None, FLAG_DTYPE] if job.compares_16_bit_state else [None]
    return [_point(job, job.model.geometry, "none", dtype) for dtype in dtypes]


def points_of_cuts(job: Job) -> list[MeasuredShape]:
    """What is known of the candidates before they are measured."""
    return [_point_of_cut(replace(job, target=target, candidates={})) for target in job.candidates]


def _point_of_cut(job: Job) -> MeasuredShape:
    """The state to which `job` cuts."""
    point = _point(job, job.after, " and ".join(job.methods), job.flag_dtype)
    needs = [point.needs] if point.needs else []
    needs += ["a plugin"] if job.after.widths else []
    kept, all_heads = job.after.num_k_heads, job.model.geometry.num_k_heads
    return replace(
        point,
        kept=str(job.target),
        needs=" and ".join(needs),
        key_heads=kept if kept < all_heads else 0,
    )


def _point(job: Job, geometry: Geometry, method: str, flag_dtype: str | None) -> MeasuredShape:
    """A state that is served in the default dtype of the engine, or with a flag in another."""
    fit = None
    for row in known_capacities(job.model, geometry, job.options.counted_in):
        is_served = row.is_default if flag_dtype is None else row.state_dtype == flag_dtype
        fit = row.fit if row.is_cut and is_served else fit
    dtype = flag_dtype or "float32"
    return MeasuredShape(
        shape=geometry.widest,
        method=method,
        state_bytes=DTYPE_BYTES[dtype] * geometry.state_numel,
        sequences=fit.sequences if fit else None,
        state_dtype=dtype,
        block_size=fit.block_size if fit else 0,
        needs=f"{job.options.engine.state_dtype_flag} {dtype}" if flag_dtype else "",
    )
