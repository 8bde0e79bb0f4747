"""Checkpoints + tasks -> Scores: the same samples for every model, the original first.

The unit of work is one task of one model; each is on disk before the next begins.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..artifacts.origin import read_origin, vocabulary_size
from ..artifacts.scores import Score, Scores
from ..errors import StatetrimError, warn_deprecated_resume
from ..maths.units import token_count
from ..progress import OnProgress, Progress, ShowProgress, showing
from ..runtime.loading import load_tokenizer
from ..runtime.placement import Dtype, MaxMemory, Placement
from ..runtime.processes import Ranks
from ..runtime.states.stored import StateStorage
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, all_opened, opened, short_names
from ..storage.output import output
from ..storage.space import check_writable
from ..tasks import TASKS, WITHOUT_HARNESS, Task, find_tasks
from ..version import __version__
from . import harness
from .finished_tasks import FinishedTasks
from .runner import Engine, Original, Runner, Setting
from .samples import Samples, Source, prepare
from .seen_text import warn_of_seen_text


def evaluate(
    models: ModelLike | Sequence[ModelLike],
    *,
    baseline: ModelLike,
    tasks: Sequence[str] = ("offline",),
    data: str | Path | None = None,
    text: str | Path | None = None,
    skip: int | str = 0,
    limit: int | None = None,
    batch_size: int = 8,
    engine: Engine = "hf",
    engine_options: Mapping[str, Any] | None = None,
    dtype: Dtype | None = None,
    device: str | None = None,
    device_map: str | None = None,
    max_memory: MaxMemory | None = None,
    layerwise: bool = False,
    storage: StateStorage | str = "float32",
    out: str | Path | None = None,
    resume: bool = False,
    progress: ShowProgress = True,
) -> Scores:
    """Run `tasks` on `baseline` and `models`, from files below `data` or, without it, from the hub.

    The task `text` reads your own text, after `skip` tokens. `limit` takes only the first samples
    of each task. `engine_options`, such as `tensor_parallel_size` or `dtype`, go to vLLM. One model
    is in memory at a time. `layerwise` streams the weights from disk, for tasks that do not use
    lm-eval: a text is read layer by layer, so that each weight is read once. `dtype`, `device`,
    `device_map` and `max_memory` are those of `load`. `storage` (or the name of a dtype) rounds the
    recurrent states of all models except the baseline, as engines store them. Under torchrun the
    processes share the tasks, and all return all scores. With `out` the scores are written there,
    and each finished task to `OUT.partial`, from which the same call resumes (`resume` is
    deprecated).
    """
    warn_deprecated_resume(resume)
    chosen = find_tasks(tasks)
    if any(task.kind not in WITHOUT_HARNESS for task in chosen):
        harness.quiet()
    checkpoints = [opened(baseline), *all_opened(models)]
    empty = next((model.path for model in checkpoints if not model.shards), None)
    if empty is not None:
        raise StatetrimError(f"{empty} holds no weights, so there is nothing to evaluate")
    storage = StateStorage(storage) if isinstance(storage, str) else storage
    names = _names(checkpoints, storage)
    placement = Placement(device, device_map, max_memory, dtype, layerwise)
    setting = Setting(engine, dict(engine_options or {}), batch_size, placement, storage)
    setting.check(chosen)
    _check(chosen, limit, text)
    if out is not None:
        check_writable(out)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statetrim-")))
        folder = Path(data) if data is not None else None
        tokenizers = _tokenizers(checkpoints)
        source = Source(folder, text, token_count(skip), limit)
        warn_of_seen_text(dict(zip(names, checkpoints, strict=True)), source, tokenizers[0])
        work = [prepare(task, source, tokenizers[0], scratch) for task in chosen]
        lineage = _lineage(names, checkpoints, setting, work, limit)
        ranks, known, place = Ranks.of_this_process(), FinishedTasks(None, names), None
        if out is not None and ranks.rank == 0:
            ours = [known.file(name, task.name) for name in names for task in chosen]
            record = {"format": "statetrim evaluate", **lineage}
            files = {"scores.json": Path(out)}
            place = stack.enter_context(output(out, "job.json", record, files=files, ours=ours))
            known = FinishedTasks(place.path, names)
        if any(ranks.gather(place is not None and place.done)):
            return Scores.load(str(out))
        report = stack.enter_context(showing(progress, "evaluating"))
        original, found = Original(checkpoints[0], placement), list[Score]()
        for name, model, tokenizer in zip(names, checkpoints, tokenizers, strict=True):
            stored = setting if found else replace(setting, storage=StateStorage())
            runner = Runner(name, model, original, tokenizer, stored)
            found += _scores(runner, work, limit, known, ranks, report)
        scores = Scores(names, found, lineage)
        if place is not None:
            scores.save(place.path / "scores.json")
            place.publish()
        ranks.wait()  # until the result is there
        return scores


def _names(models: list[Checkpoint], storage: StateStorage) -> list[str]:
    """Short ones; the original may be given again where its state is stored otherwise."""
    first = models[0].path.resolve()
    again = [storage.rounds and model.path.resolve() == first for model in models[1:]]
    others = (model for model, same in zip(models[1:], again, strict=True) if not same)
    short = iter(short_names([models[0], *others]))
    original = next(short)
    return [original, *(f"{original}-{storage.dtype}" if same else next(short) for same in again)]


def _tokenizers(models: list[Checkpoint]) -> list[Any]:
    """One for each, all of which do the same."""
    found = [load_tokenizer(model) for model in models]
    if len({json.dumps(each("The quick brown fox, 42.")["input_ids"]) for each in found}) > 1:
        raise StatetrimError("the models have different tokenizers, so they cannot be compared")
    return found


def _scores(
    runner: Runner,
    work: list[Samples],
    limit: int | None,
    known: FinishedTasks,
    ranks: Ranks,
    report: OnProgress,
) -> list[Score]:
    """One model on all tasks, those that are done already left out; each process takes its share,
    and the first one keeps the results."""
    done, *_ = ranks.gather(
        {item.task.name: known.find(runner.name, item.task.name) for item in work}
    )
    mine: dict[str, list[Score]] = {}
    for item in ranks.share([item for item in work if done[item.task.name] is None]):
        mine[item.task.name] = runner.run(item, limit, report)
        if ranks.rank == 0:
            known.keep(runner.name, item.task.name, mine[item.task.name])
        report(Progress(1, 1, "tasks", f"{runner.name}: {item.task.name}"))
    runner.close()
    for rank, theirs in enumerate(ranks.gather(mine)):
        for task, scores in theirs.items():
            done[task] = scores
            if ranks.rank == 0 and rank:
                known.keep(runner.name, task, scores)
    return [score for item in work for score in done[item.task.name] or ()]


def _lineage(
    names: list[str],
    models: list[Checkpoint],
    setting: Setting,
    work: list[Samples],
    limit: int | None,
) -> dict[str, Any]:
    marks = [model.digest for model in models]
    asking = any(item.task.kind not in WITHOUT_HARNESS for item in work)
    return {
        "statetrim": __version__,
        "lm_eval": harness.version() if asking else None,
        "engine": setting.engine,
        **({"engine_options": dict(setting.engine_options)} if setting.engine_options else {}),
        **({"state": asdict(setting.storage)} if setting.storage.rounds else {}),
        "limit": limit,
        "baseline": marks[0],
        "models": marks,
        "data": {item.task.name: item.digest for item in work},
        "original": marks[0],
        "vocabulary": vocabulary_size(models[0]),
        "cuts": {
            name: read_origin(model, models[0]) for name, model in zip(names, models, strict=True)
        },
        **({"dtype": setting.placement.said_dtype} if setting.placement.dtype else {}),
    }


def _check(tasks: list[Task], limit: int | None, text: str | Path | None) -> None:
    if limit is not None and limit < 2:
        raise StatetrimError(
            f"a limit of {limit} leaves nothing to compare; take 2 samples or more"
        )
    if (text is not None) != (TASKS["text"] in tasks):
        raise StatetrimError("the task 'text' and --text SOURCE go together; give both or neither")
