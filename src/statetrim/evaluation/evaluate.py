"""Checkpoints + tasks -> Scores, with the same samples for every model; the original runs first.

The unit of work is one task of one model; its scores are saved before the next one starts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..artifacts.record import as_fields, parse_record
from ..artifacts.scores import Score, Scores
from ..artifacts.steps import read_origin, vocabulary_size
from ..errors import StatetrimError
from ..judging.verdict import REQUIRED_GROUPS, needs_samples, shapes_to_compare
from ..maths.units import parse_token_count
from ..options import takes_options
from ..progress import OnProgress, progress_reporter
from ..runtime.corpus import as_corpus
from ..runtime.distributed import DistributedContext
from ..runtime.loading import load_tokenizer
from ..runtime.states import StateStorage
from ..storage.checkpoint import Checkpoint
from ..storage.json_file import read_json, write_json
from ..storage.models import ModelLike, as_checkpoint, as_checkpoints, short_names
from ..storage.output import open_output
from ..storage.space import check_writable
from ..tasks import TASKS
from ..version import __version__
from . import harness
from .controls import SAMPLES as CONTROL_SAMPLES
from .controls import masked_models
from .options import EvaluateOptions
from .runner import ModelRunner, OriginalResults, check_tasks
from .samples import DEFAULT_SAMPLES, Samples, looks, prepare_samples, warn_of_seen_text


@takes_options(EvaluateOptions)
def evaluate(models: ModelLike | Sequence[ModelLike], options: EvaluateOptions) -> Scores:
    """Run `tasks` on `baseline` and `models`: `text`, `mqar`, `agreement`, and any task of lm-eval,
    with definitions or rows below `data` or, without it, from the hub.

    One model is in memory at a time. Samples of tasks without lm-eval are doubled from 32 up to
    `limit` until they decide the verdict on every cut, or all are taken at once with `all_samples`.
    Random cuts of the same shapes are measured by masking the original. `layerwise` is for tasks
    that do not use lm-eval: a text is read layer by layer, so that each weight is read once.
    `state_dtype` rounds states as engines store them. Under torchrun the processes share the tasks,
    and all return all scores. With `out`
    the scores are written there, and each finished task to `OUT.partial`, from which the same call
    resumes.
    """
    if not {*options.tasks} <= {*TASKS}:
        harness.silence_libraries()
    checkpoints = [as_checkpoint(options.baseline), *as_checkpoints(models)]
    for model in checkpoints:
        if not model.shards:
            raise StatetrimError(f"{model.path} holds no weights, so there is nothing to evaluate")
    names = _display_names(checkpoints, options.storage)
    check_tasks(options)
    out = options.out
    if out is not None:
        check_writable(out)
    with ExitStack() as stack:
        tokenizers = _load_tokenizers(checkpoints)
        text = None if options.text is None else as_corpus(options.text, checkpoints[0])
        skip = parse_token_count(options.skip)
        if text is not None:
            models_by_name = dict(zip(names, checkpoints, strict=True))
            warn_of_seen_text(models_by_name, text, skip, options.limit)
        samples = prepare_samples(options, text, skip, tokenizers[0])
        original = options.original or OriginalResults(checkpoints[0], options.placement)
        runners = _runners(names, checkpoints, tokenizers, original, options)
        lineage = _lineage(names, checkpoints, options, samples, runners)
        most = options.limit or DEFAULT_SAMPLES
        all_looks = looks(most, all_at_once=options.all_samples or len(names) == 1)
        ranks, partial_output = DistributedContext.join(), None
        finished = FinishedTasks(None, [runner.name for runner in runners], original.scores)
        if out is not None and ranks.rank == 0:
            record, files = {"format": "statetrim evaluate", **lineage}, {"scores.json": Path(out)}
            patterns = [finished.file_name("*", x.task, "*") for x in samples]
            partial_output = stack.enter_context(
                open_output(out, "job.json", record, files=files, temporary_patterns=patterns)
            )
            finished = replace(finished, directory=partial_output.path)
        if any(ranks.all_gather(partial_output is not None and partial_output.done)):
            return Scores.load(str(out))
        report = stack.enter_context(progress_reporter(options.progress, "evaluating"))

        def score(runner: ModelRunner, due: Sequence[Samples], rows: range) -> list[Score]:
            return _score_tasks(runner, due, rows, finished, ranks, report)

        scores = _sample_until_decided(
            Scores(names, [], lineage), runners, samples, all_looks, score
        )
        if partial_output is not None:
            scores.save(partial_output.path / "scores.json")
            partial_output.publish()
        ranks.barrier()  # until rank 0 has published the result
        return scores


def _sample_until_decided(
    empty: Scores,
    runners: Sequence[ModelRunner],
    samples: Sequence[Samples],
    all_looks: Sequence[range],
    score_tasks: Callable[[ModelRunner, Sequence[Samples], range], list[Score]],
) -> Scores:
    """The scores of all runners after as many looks as decide the verdict on every cut.

    Only the first look runs lm-eval, which takes all its samples. Masked models come last: few
    samples of the first look are enough, on one task of each required group, and a cut that does
    not keep its limits needs none.
    """
    by_key, sizes = dict[tuple[str, str, str], Score](), list[int]()
    original, most = runners[0].original, all_looks[-1].stop

    def add(runner: ModelRunner, due: Sequence[Samples], rows: range) -> dict[str, list[Score]]:
        by_task: dict[str, list[Score]] = {x.task: [] for x in due}
        for score in score_tasks(runner, due, rows):
            by_task[score.task].append(score)
            key = score.model, score.task, score.metric
            by_key[key] = _joined(by_key[key], score) if key in by_key else score
        return by_task

    for look in all_looks:
        for runner in (x for x in runners if x.masked is None):
            due = [x for x in samples if not sizes or not x.uses_harness]
            by_task = add(runner, due, look)
            runner.close(None)
            if runner is runners[0]:
                original.scores |= {(task, look.start): scored for task, scored in by_task.items()}
        sizes.append(look.stop)
        looked = {"looks": {"sizes": list(sizes), "most": most}}
        scores = Scores(empty.models, list(by_key.values()), empty.lineage | looked)
        if not needs_samples(scores):
            break
    shapes = shapes_to_compare(scores)
    masked = [x for x in runners if x.masked is not None and x.masked.shape in shapes]
    for runner, following in zip(masked, [*masked[1:], None], strict=False):
        add(runner, _control_samples(samples), all_looks[0][:CONTROL_SAMPLES])
        runner.close(following)
    return replace(scores, scores=list(by_key.values()))


def _control_samples(samples: Sequence[Samples]) -> list[Samples]:
    """Of each required group the first task, if possible one that does not need lm-eval."""
    chosen = []
    for group in REQUIRED_GROUPS:
        of_group = [x for x in samples if x.group == group]
        of_group.sort(key=lambda x: x.uses_harness)
        chosen += of_group[:1]
    return chosen


def _runners(
    names: Sequence[str],
    models: Sequence[Checkpoint],
    tokenizers: Sequence[Any],
    original: OriginalResults,
    options: EvaluateOptions,
) -> list[ModelRunner]:
    """The original, then the other models, then random cuts of their shapes, and the cuts as they
    were before a refit or training; the last two mask the original, so vLLM has none."""
    runners: list[ModelRunner] = []
    for name, model, tokenizer in zip(names, models, tokenizers, strict=True):
        storage = options.storage if runners else StateStorage()
        runners.append(ModelRunner(name, model, original, tokenizer, options, storage))
    if not options.control or options.in_vllm:
        return runners
    cuts = dict(zip(names[1:], models[1:], strict=True))
    most = options.limit or DEFAULT_SAMPLES
    for masked in masked_models(models[0], cuts, most, lossy=options.storage.is_lossy):
        runner = ModelRunner(
            masked.name, models[0], original, tokenizers[0], options, StateStorage(), masked
        )
        runners.append(runner)
    return runners


def _joined(first: Score, more: Score) -> Score:
    weights = None if first.weights is None else [*first.weights, *(more.weights or [])]
    return replace(first, samples=[*first.samples, *more.samples], weights=weights)


@dataclass(frozen=True)
class FinishedTasks:
    """A file per model and finished task, from which a killed run resumes."""

    directory: Path | None
    models: Sequence[str]
    original_scores: Mapping[tuple[str, int], Sequence[Score]]  # that the first model has already

    def load(self, model: str, task: str, start: int) -> list[Score] | None:
        """The scores that are known or saved; None if the task is not finished."""
        if model == self.models[0] and (task, start) in self.original_scores:
            return [replace(score, model=model) for score in self.original_scores[task, start]]
        path = self._path(model, task, start)
        if path is None or not path.exists():
            return None
        return parse_record(read_json(path, Scores.MAX_BYTES).get("scores"), list[Score], path)

    def save(self, model: str, task: str, start: int, scores: list[Score]) -> None:
        """Write the scores of a finished task."""
        if path := self._path(model, task, start):
            write_json(path, {"scores": [as_fields(score) for score in scores]}, indent=None)

    def _path(self, model: str, task: str, start: int) -> Path | None:
        number = self.models.index(model)
        return self.directory and self.directory / self.file_name(number, task, start)

    @staticmethod
    def file_name(model: int | str, task: str, start: int | str) -> str:
        """The name of a file, from the number of the model and of the first sample."""
        return f"{model}.{task}.{start}.json"


def _display_names(models: list[Checkpoint], storage: StateStorage) -> list[str]:
    """A short name per model. With a lossy `storage` the original may be given again, with its
    state rounded; its second name ends with the dtype."""
    path = models[0].path.resolve()
    rounded = [storage.is_lossy and model.path.resolve() == path for model in models[1:]]
    others = [model for model, again in zip(models[1:], rounded, strict=True) if not again]
    original, *names = short_names([models[0], *others])
    for number, again in enumerate(rounded):
        if again:
            names.insert(number, f"{original}-{storage.dtype}")
    return [original, *names]


def _load_tokenizers(models: list[Checkpoint]) -> list[Any]:
    """One tokenizer per model. Raises StatetrimError unless all give the same ids for a probe."""
    tokenizers = [load_tokenizer(model) for model in models]
    ids = [list(tokenizer("The quick brown fox, 42.")["input_ids"]) for tokenizer in tokenizers]
    if any(other != ids[0] for other in ids[1:]):
        raise StatetrimError("the models have different tokenizers, so they cannot be compared")
    return tokenizers


def _score_tasks(
    runner: ModelRunner,
    task_samples: Sequence[Samples],
    rows: range,
    finished: FinishedTasks,
    ranks: DistributedContext,
    report: OnProgress,
) -> list[Score]:
    """Scores of one model on samples `rows` of all tasks, in their order: finished ones are loaded,
    and each process runs its share of the others. Every process must call this, and gets all
    scores."""
    task_names = [samples.task for samples in task_samples]
    loaded = {name: finished.load(runner.name, name, rows.start) for name in task_names}
    scores_by_task = ranks.all_gather(loaded)[0]  # only rank 0 has the files
    remaining = [samples for samples in task_samples if scores_by_task[samples.task] is None]
    own_scores: dict[str, list[Score]] = {}
    for samples in ranks.shard(remaining):
        name = samples.task
        own_scores[name] = runner.run(samples, rows, report)
        if ranks.rank == 0:
            finished.save(runner.name, name, rows.start, own_scores[name])
    for rank, rank_scores in enumerate(ranks.all_gather(own_scores)):
        for name, scores in rank_scores.items():
            scores_by_task[name] = scores
            if ranks.rank == 0 and rank:
                finished.save(runner.name, name, rows.start, scores)
    all_scores: list[Score] = []
    for name in task_names:
        all_scores += scores_by_task[name] or []
    return all_scores


def _lineage(
    names: list[str],
    models: list[Checkpoint],
    options: EvaluateOptions,
    task_samples: list[Samples],
    runners: Sequence[ModelRunner],
) -> dict[str, Any]:
    """What the scores were made from; two runs with the same lineage give the same scores."""
    digests = [model.digest for model in models]
    cuts = {name: read_origin(m, models[0]) for name, m in zip(names, models, strict=True)}
    controls = dict[str, dict[str, Any]]()
    for runner in runners:
        if runner.masked and runner.masked.of:
            cuts[runner.masked.of] = {**(cuts[runner.masked.of] or {}), "masked": runner.name}
        elif runner.masked:
            controls[runner.name] = runner.masked.record
    uses_harness = any(samples.uses_harness for samples in task_samples)
    return {
        "statetrim": __version__,
        "lm_eval": version("lm_eval") if uses_harness else None,
        "engine": options.engine,
        **({"engine_options": dict(options.engine_options)} if options.engine_options else {}),
        **({"state": asdict(options.storage)} if options.storage.is_lossy else {}),
        "limit": options.limit,
        "baseline": digests[0],
        "models": digests,
        "data": {samples.task: samples.digest for samples in task_samples},
        "original": digests[0],
        "vocabulary": vocabulary_size(models[0]),
        "cuts": cuts,
        **({"controls": controls} if controls else {}),
        **({"recall_seed": options.recall_seed} if options.recall_seed else {}),
        **({"all_samples": True} if options.all_samples else {}),
        **({"dtype": options.dtype_text} if options.dtype else {}),
    }
