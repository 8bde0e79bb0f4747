"""One model and its tasks, in transformers or in vLLM."""

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ..artifacts.scores import Score
from ..errors import StatetrimError
from ..progress import OnProgress, Progress
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.logits import Logits, compared
from ..runtime.placement import Placement
from ..runtime.reading import Reading
from ..runtime.states.stored import StateStorage, StoredReader, stored_states
from ..storage.checkpoint import Checkpoint
from ..tasks import WITHOUT_HARNESS, Task, recall
from . import harness
from .samples import MQAR_ROWS, Samples

LONG_MQAR = {"pairs": 16, "length": 512}  # few pairs, far back

VLLM_BATCH = 256
"""Sequences handed to vLLM at a time, which schedules them itself; with "auto" lm-eval asks it for
a bar, and vLLM divides by the time of a bar that is switched off."""

Engine = Literal["hf", "vllm"]


@dataclass(frozen=True)
class Setting:
    """How every model of an evaluation is run."""

    engine: Engine = "hf"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8
    placement: Placement = field(default_factory=Placement)
    storage: StateStorage = field(default_factory=StateStorage)

    @property
    def for_engine(self) -> dict[str, Any]:
        """vLLM's own options; where a model is to be spread, over all GPUs unless they say."""
        spread = {"tensor_parallel_size": self.placement.cards} if self.placement.device_map else {}
        return {**spread, **self.engine_options}

    def check(self, tasks: Sequence[Task]) -> None:
        """A sentence where `tasks` cannot be run so."""
        if self.engine not in ("hf", "vllm"):
            raise StatetrimError(f"there is no engine {self.engine!r}; choose hf or vllm")
        if self.engine_options and self.engine != "vllm":
            raise StatetrimError("engine options are for vLLM; take --engine vllm too")
        if self.batch_size < 1:
            raise StatetrimError(
                f"a batch of {self.batch_size} sequences is not possible; take 1 or more"
            )
        if self.storage.rounds and self.engine == "vllm":
            raise StatetrimError(
                "--state-dtype rounds in transformers; vLLM has its own: "
                "--engine-option mamba_ssm_cache_dtype=bfloat16"
            )
        inner = next((task.name for task in tasks if task.kind in WITHOUT_HARNESS), None)
        if self.engine == "vllm" and inner:
            raise StatetrimError(f"{inner} reads the model's own logits, so it needs --engine hf")
        outer = next((task.name for task in tasks if task.kind not in WITHOUT_HARNESS), None)
        if self.placement.layerwise and outer:
            raise StatetrimError(
                f"{outer} needs the whole model in memory; layerwise runs "
                f"{', '.join(WITHOUT_HARNESS)}"
            )


class Original:
    """What the model before the cut read, for the others to be compared with."""

    def __init__(self, checkpoint: Checkpoint, placement: Placement) -> None:
        self.checkpoint, self.placement = checkpoint, placement
        self._readings: dict[str, Reading] = {}

    def read(
        self,
        task: str,
        batches: list[Tensor],
        live: LiveModel | None = None,
        report: Callable[[int], None] = lambda batch: None,
    ) -> Reading:
        """The reading of a task, which may have been made before; else by `live`, or by a model
        that is loaded for it and let go."""
        if task not in self._readings:
            loaded = live or load_live(self.checkpoint, self.placement)
            self._readings[task] = Reading(loaded, batches, report)
            if live is None:
                self.let_go()
        return self._readings[task]

    def has(self, task: str) -> bool:
        return task in self._readings

    def let_go(self) -> None:
        for reading in self._readings.values():
            reading.let_go()


class Runner:
    """One model and its tasks; loaded when the first task needs it."""

    def __init__(
        self,
        name: str,
        model: Checkpoint,
        original: Original,
        tokenizer: Any,
        setting: Setting,
    ) -> None:
        self.name, self.model, self.original, self.tokenizer = name, model, original, tokenizer
        self.setting = setting
        self.live: LiveModel | None = None
        self.lm: Any = None

    def run(self, work: Samples, limit: int | None, progress: OnProgress) -> list[Score]:
        task = work.task

        def report(done: int, total: int) -> None:
            progress(Progress(done, total, "samples", f"{self.name}: {task.name}"))

        report(0, 1)
        if task.kind == "mqar":
            return self._mqar(limit or MQAR_ROWS, report)
        if work.ids is not None:
            return self._reading(task, work.ids, report)
        assert work.directory is not None
        with self._stored():
            return harness.run(self._lm(), self.name, task, work.directory, limit, report)

    def close(self) -> None:
        """Make room for the next model."""
        self.live = self.lm = None
        self.original.let_go()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _stored(self) -> AbstractContextManager[None]:
        """Within, the model's states are stored as asked; vLLM stores its own."""
        if self.setting.engine == "vllm":
            return nullcontext()
        return stored_states(self._model(), self.setting.storage)

    def _model(self) -> LiveModel:
        if self.live is None:
            self.live = load_live(self.model, self.setting.placement)
        return self.live

    def _lm(self) -> Any:
        if self.lm is None and self.setting.engine == "vllm":
            self.lm = harness.vllm_model(self.model.path, VLLM_BATCH, self.setting.for_engine)
        elif self.lm is None:
            self.lm = harness.hf_model(
                self._model().module, self.tokenizer, self.setting.batch_size
            )
        return self.lm

    def _mqar(self, rows: int, report: harness.Report) -> list[Score]:
        vocabulary = int(self._model().head.weight.shape[0])
        cells = [{"pairs": load, "length": 0} for load in recall.LOADS] + [LONG_MQAR]
        cells = [cell for cell in cells if cell["pairs"] <= vocabulary // 4]
        made = [recall.associations(vocabulary, rows=rows, **cell) for cell in cells]
        parts = [
            (part, asked)
            for ids, asked in made
            for part in torch.split(ids, self.setting.batch_size)
        ]
        layerwise = self.setting.placement.layerwise
        reading, asking = _counts(report, len(parts), read_first=layerwise)
        read = self._reader([ids for ids, _ in parts], reading)
        shares, found = list[float](), list[Score]()
        for number, (ids, asked) in enumerate(parts):
            with torch.inference_mode():
                shares += recall.recalled(ids, asked, read(number)(asked)).tolist()
            asking(number + 1)
        for place, cell in enumerate(cells):
            far = f"_in_{cell['length']}" if cell["length"] else ""
            name = f"pairs_{cell['pairs']}{far}"
            found.append(self._share("mqar", name, shares[place * rows : (place + 1) * rows]))
        rows_of = zip(*(score.samples for score in found), strict=True)
        means = [sum(row) / len(row) for row in rows_of]
        return [self._share("mqar", "accuracy", means), *found]

    def _reading(self, task: Task, ids: Tensor, report: harness.Report) -> list[Score]:
        """Sequences compared with the baseline: agreement with it and, on own text, perplexity."""
        size = self.setting.batch_size
        batches, before = list(torch.split(ids.long(), size)), None
        is_original = self.model is self.original.checkpoint and not self.setting.storage.rounds
        read_first = is_original or self.setting.placement.layerwise
        reading, comparing = _counts(report, len(ids), size, read_first=read_first)
        after: Callable[[int], Logits]
        if is_original:
            after = self.original.read(task.name, batches, self._model(), reading).at
        else:
            if not self.original.has(task.name):
                self.live = self.lm = None  # two may not fit
            before = self.original.read(task.name, batches)
            after = self._reader(batches, reading)
        parts = []
        for number, batch in enumerate(batches):
            with torch.inference_mode():
                new = after(number)
                old = new if before is None else before.at(number)
            parts.append(compared(old, new, batch))
            comparing(number + 1)
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

    def _reader(
        self, batches: list[Tensor], count: Callable[[int], None]
    ) -> Callable[[int], Logits]:
        """Gives the logits of a batch; weights on disk are read once for all of them."""
        storage = self.setting.storage
        if self.setting.placement.layerwise:
            with stored_states(self._model(), storage):
                return Reading(self._model(), batches, count).at
        reader = StoredReader(self._model(), storage)
        return lambda number: reader.at(batches[number])

    def _share(self, task: str, metric: str, samples: list[float]) -> Score:
        return Score(self.name, task, metric, "share", True, samples)


def _counts(
    report: harness.Report, total: int, size: int = 1, *, read_first: bool
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """What reading and what comparing batches of `size` report to. Where everything is read before
    the first is compared, each is half of the whole, so that nothing is counted twice."""

    def count(batch: int, halves: int) -> None:
        done = min(batch * size, total)
        report((done + halves * total) // 2 if read_first else done, total)

    return lambda batch: count(batch, 0), lambda batch: count(batch, 1)
