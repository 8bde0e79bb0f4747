"""Checkpoints + tasks -> Scores: the same samples for every model, the original first.

The unit of work is one task of one model; each is on disk before the next begins.
"""

import gc
import hashlib
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..artifacts.origin import origin, vocabulary
from ..artifacts.scores import Score, Scores
from ..errors import StatetrimError
from ..maths.units import token_count
from ..progress import OnProgress, Progress, ShowProgress, showing
from ..runtime.live import LiveModel
from ..runtime.loading import load_live, load_tokenizer
from ..runtime.logits import LogitReader, compare
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, all_opened, opened
from ..storage.output import output
from ..storage.space import check_writable
from ..storage.text import sequences
from ..tasks import (
    TASKS,
    WITHOUT_HARNESS,
    Row,
    Task,
    define,
    find_tasks,
    pages,
    prepare_rows,
    recall,
)
from ..version import __version__
from . import harness
from .finished_tasks import FinishedTasks

MQAR_ROWS = 64
LONG_MQAR = {"pairs": 16, "length": 512}  # few pairs, far back
AGREEMENT_ROWS, AGREEMENT_LENGTH = 128, 512

Engine = Literal["hf", "vllm"]


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
    layerwise: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    progress: ShowProgress = True,
) -> Scores:
    """Run `tasks` on `baseline` and `models`, from files below `data` or, without it, from the hub.

    The task `text` reads a text of your own, after `skip` tokens. `limit` takes the first samples
    of each task only. `layerwise` streams the weights from disk, for the tasks that do without
    lm-eval. With `out` the scores are written there, and each finished task to `OUT.partial`, from
    which the same call goes on after an interruption (`resume` is not needed any more).
    """
    chosen = find_tasks(tasks)
    asking = [task for task in chosen if task.kind not in WITHOUT_HARNESS]
    if asking:
        harness.quiet()
    checkpoints = [opened(baseline), *all_opened(models)]
    names = _names(checkpoints)
    _check(chosen, engine, limit, batch_size, text, layerwise)
    if out is not None:
        check_writable(out)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statetrim-")))
        folder = Path(data) if data is not None else None
        tokenizers = [load_tokenizer(model) for model in checkpoints]
        plain = [json.dumps(t("The quick brown fox, 42.")["input_ids"]) for t in tokenizers]
        if len(set(plain)) > 1:
            raise StatetrimError("the models have different tokenizers, so they cannot be compared")
        source = _Source(folder, text, token_count(skip), limit)
        work = [_prepare(task, source, tokenizers[0], scratch) for task in chosen]
        marks = [model.fingerprint for model in checkpoints]
        lineage = {
            "statetrim": __version__,
            "lm_eval": harness.version() if asking else None,
            "engine": engine,
            "limit": limit,
            "baseline": marks[0],
            "models": marks,
            "data": {item.task.name: item.digest for item in work},
            "original": checkpoints[0].digest,
            "vocabulary": vocabulary(checkpoints[0]),
            "cuts": {name: origin(model) for name, model in zip(names, checkpoints, strict=True)},
        }
        known = FinishedTasks(None, names)
        if out is not None:
            ours = [known.file(name, task.name) for name in names for task in chosen]
            record = {"format": "statetrim evaluate", **lineage}
            files = {"scores.json": Path(out)}
            place = stack.enter_context(output(out, "job.json", record, files=files, ours=ours))
            if place.done:
                return Scores.load(out)
            known = FinishedTasks(place.path, names)
        found: list[Score] = []
        report = stack.enter_context(showing(progress, "evaluating"))
        for name, model, tokenizer in zip(names, checkpoints, tokenizers, strict=True):
            runner = _Runner(name, model, checkpoints[0], tokenizer, batch_size, engine, layerwise)
            for item in work:
                done = known.find(name, item.task.name)
                if done is None:
                    done = runner.run(item, limit, report)
                    known.keep(name, item.task.name, done)
                report(Progress(1, 1, "tasks", f"{name}: {item.task.name}"))
                found += done
            runner.close()
        scores = Scores(names, found, lineage)
        if out is not None:
            scores.save(place.path / "scores.json")
            place.publish()
        return scores


@dataclass(frozen=True, eq=False)
class _Work:
    """A task with its samples ready: a folder for lm-eval, or token ids."""

    task: Task
    digest: str
    directory: Path | None = None
    ids: Tensor | None = None


@dataclass(frozen=True)
class _Source:
    """Where samples come from, and how many are taken."""

    data: Path | None
    text: str | Path | None
    skip: int
    limit: int | None


def _prepare(task: Task, source: _Source, tokenizer: Any, scratch: Path) -> _Work:
    data, limit = source.data, source.limit
    if task.kind == "mqar":
        return _Work(task, f"seeded, loads {recall.LOADS}, {limit or MQAR_ROWS} rows")
    if task.kind in ("agreement", "text"):
        if task.kind == "text":
            assert source.text is not None
            count = (limit or AGREEMENT_ROWS) * AGREEMENT_LENGTH
            ids = sequences(
                source.text, tokenizer, tokens=count, length=AGREEMENT_LENGTH, skip=source.skip
            ).ids
        else:
            ids = _agreement_ids(task, data, tokenizer, limit)
        return _Work(task, hashlib.sha256(ids.numpy().tobytes()).hexdigest(), ids=ids)
    stock = harness.stock_tasks()
    if data is None and task.kind == "stock":
        return _Work(task, "hub", (stock / task.stock).parent)
    file = task.file(data) if data is not None else None
    rows: list[Row] = prepare_rows(task, file, _spans(tokenizer), limit)
    if not rows:
        raise StatetrimError(f"{file or task.hub} holds no rows for {task.name}")
    directory = scratch / task.name
    directory.mkdir()
    define(task, rows, directory, stock)
    content = (directory / f"{task.name}.jsonl").read_bytes()
    return _Work(task, hashlib.sha256(content).hexdigest(), directory)


class _Runner:
    """One model and its tasks; loaded when the first task needs it."""

    def __init__(
        self,
        name: str,
        model: Checkpoint,
        baseline: Checkpoint,
        tokenizer: Any,
        batch_size: int,
        engine: Engine,
        layerwise: bool,
    ) -> None:
        self.name, self.model, self.baseline, self.tokenizer = name, model, baseline, tokenizer
        self.batch_size, self.engine, self.layerwise = batch_size, engine, layerwise
        self.live: LiveModel | None = None
        self.lm: Any = None

    def run(self, work: _Work, limit: int | None, progress: OnProgress) -> list[Score]:
        task = work.task

        def report(done: int, total: int) -> None:
            progress(Progress(done, total, "samples", f"{self.name}: {task.name}"))

        report(0, 1)
        if task.kind == "mqar":
            return self._mqar(limit or MQAR_ROWS, report)
        if work.ids is not None:
            return self._reading(task, work.ids, report)
        assert work.directory is not None
        return harness.run(self._lm(), self.name, task, work.directory, limit, report)

    def close(self) -> None:
        self.live = self.lm = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _model(self) -> LiveModel:
        if self.live is None:
            self.live = load_live(self.model, layerwise=self.layerwise)
        return self.live

    def _lm(self) -> Any:
        if self.lm is None and self.engine == "vllm":
            self.lm = harness.vllm_model(self.model.path, "auto")
        elif self.lm is None:
            self.lm = harness.hf_model(self._model().module, self.tokenizer, self.batch_size)
        return self.lm

    def _mqar(self, rows: int, report: harness.Report) -> list[Score]:
        reader, found = LogitReader(self._model()), []
        cells = [{"pairs": load, "length": 0} for load in recall.LOADS] + [LONG_MQAR]
        cells = [cell for cell in cells if cell["pairs"] <= reader.vocabulary // 4]
        for number, cell in enumerate(cells, start=1):
            ids, asked = recall.associations(reader.vocabulary, rows=rows, **cell)
            shares = []
            with torch.inference_mode():
                for part in torch.split(ids, self.batch_size):
                    shares += recall.recalled(part, asked, reader.at(part)(asked)).tolist()
            far = f"_in_{cell['length']}" if cell["length"] else ""
            found.append(self._share("mqar", f"pairs_{cell['pairs']}{far}", shares))
            report(number, len(cells))
        rows_of = zip(*(score.samples for score in found), strict=True)
        means = [sum(row) / len(row) for row in rows_of]
        return [self._share("mqar", "accuracy", means), *found]

    def _reading(self, task: Task, ids: Tensor, report: harness.Report) -> list[Score]:
        """Sequences read beside the baseline: agreement with it and, on own text, perplexity."""
        after = LogitReader(self._model())
        original = self.model is self.baseline
        before = after
        if not original:
            before = LogitReader(load_live(self.baseline, layerwise=self.layerwise))
        parts = []
        for part in torch.split(ids, self.batch_size):
            parts.append(compare(before, after, part.long()))
            report(min(len(parts) * self.batch_size, len(ids)), len(ids))
        kl, likelihood = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("kl", "log_likelihood")
        )
        if not bool(kl.isfinite().all()):
            raise StatetrimError(f"{self.name} gives logits that are not numbers")
        same = torch.cat([part.same for part in parts]).tolist()
        scores = [
            Score(self.name, task.name, "kl", "nats", False, kl.tolist()),
            self._share(task.name, "top1", same),
        ]
        if task.kind == "text":
            words = [float(ids.shape[1] - 1)] * len(ids)  # tokens that were foretold
            read = Score(
                self.name, "text", "perplexity", "perplexity", False, likelihood.tolist(), words
            )
            scores.insert(0, read)
        return scores

    def _share(self, task: str, metric: str, samples: list[float]) -> Score:
        return Score(self.name, task, metric, "share", True, samples)


def _names(models: list[Checkpoint]) -> list[str]:
    """Short names for columns: the directory's, or more of the path where two are alike."""
    empty = next((model.path for model in models if not model.shards), None)
    if empty is not None:
        raise StatetrimError(f"{empty} holds no weights, so there is nothing to evaluate")
    paths = [model.path.resolve() for model in models]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise StatetrimError(f"{twice} is given twice; every model is evaluated once")
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def _check(
    tasks: list[Task],
    engine: Engine,
    limit: int | None,
    batch_size: int,
    text: str | Path | None,
    layerwise: bool,
) -> None:
    if engine not in ("hf", "vllm"):
        raise StatetrimError(f"there is no engine {engine!r}; choose hf or vllm")
    if limit is not None and limit < 2:
        raise StatetrimError(
            f"a limit of {limit} leaves nothing to compare; take 2 samples or more"
        )
    if batch_size < 1:
        raise StatetrimError(f"a batch of {batch_size} sequences is none; take 1 or more")
    if (text is not None) != (TASKS["text"] in tasks):
        raise StatetrimError("the task 'text' and --text SOURCE go together; give both or neither")
    inner = next((task.name for task in tasks if task.kind in WITHOUT_HARNESS), None)
    if engine == "vllm" and inner:
        raise StatetrimError(f"{inner} reads the model's own logits, so it needs --engine hf")
    outer = next((task.name for task in tasks if task.kind not in WITHOUT_HARNESS), None)
    if layerwise and outer:
        raise StatetrimError(
            f"{outer} needs the whole model in memory; layerwise runs {', '.join(WITHOUT_HARNESS)}"
        )


def _agreement_ids(task: Task, data: Path | None, tokenizer: Any, limit: int | None) -> Tensor:
    """The first sequences of the text, documents joined by the end-of-text token, int32."""
    if data is None:
        raise StatetrimError(f"{task.name} needs --data, a directory with {task.files}")
    ids: list[int] = []
    rows = limit or AGREEMENT_ROWS
    for page in pages(task.file(data)):
        ids += tokenizer(page, add_special_tokens=False)["input_ids"]
        ids += [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        if len(ids) >= rows * AGREEMENT_LENGTH:
            break
    rows = min(rows, len(ids) // AGREEMENT_LENGTH)
    if not rows:
        raise StatetrimError(f"{task.file(data)} is shorter than {AGREEMENT_LENGTH} tokens")
    flat = torch.tensor(ids[: rows * AGREEMENT_LENGTH], dtype=torch.int32)
    return flat.reshape(rows, AGREEMENT_LENGTH)


def _spans(tokenizer: Any) -> recall.Spans:
    if not tokenizer.is_fast:
        raise StatetrimError("recall tasks need a tokenizer.json, to know where its tokens stand")

    def spans(text: str) -> list[tuple[int, int]]:
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [(int(start), int(end)) for start, end in found["offset_mapping"]]

    return spans
