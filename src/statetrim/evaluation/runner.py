"""One model and its tasks, in transformers or in vLLM."""

import gc
from collections.abc import Mapping, Sequence
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
from ..runtime.logits import LogitReader, compare
from ..runtime.stored_states import StateStorage, StoredReader, stored_states
from ..storage.checkpoint import Checkpoint
from ..tasks import WITHOUT_HARNESS, Task, recall
from . import harness
from .samples import MQAR_ROWS, Samples

LONG_MQAR = {"pairs": 16, "length": 512}  # few pairs, far back

Engine = Literal["hf", "vllm"]


@dataclass(frozen=True)
class Setting:
    """How every model of an evaluation is run."""

    engine: Engine = "hf"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8
    layerwise: bool = False
    storage: StateStorage = field(default_factory=StateStorage)

    def check(self, tasks: Sequence[Task]) -> None:
        """A sentence where `tasks` cannot be run so."""
        if self.engine not in ("hf", "vllm"):
            raise StatetrimError(f"there is no engine {self.engine!r}; choose hf or vllm")
        if self.engine_options and self.engine != "vllm":
            raise StatetrimError("engine options are for vLLM; take --engine vllm too")
        if self.batch_size < 1:
            raise StatetrimError(f"a batch of {self.batch_size} sequences is none; take 1 or more")
        if self.storage.rounds and self.engine == "vllm":
            raise StatetrimError(
                "--state-dtype rounds in transformers; vLLM has its own: "
                "--engine-option mamba_ssm_cache_dtype=bfloat16"
            )
        inner = next((task.name for task in tasks if task.kind in WITHOUT_HARNESS), None)
        if self.engine == "vllm" and inner:
            raise StatetrimError(f"{inner} reads the model's own logits, so it needs --engine hf")
        outer = next((task.name for task in tasks if task.kind not in WITHOUT_HARNESS), None)
        if self.layerwise and outer:
            raise StatetrimError(
                f"{outer} needs the whole model in memory; layerwise runs "
                f"{', '.join(WITHOUT_HARNESS)}"
            )


class Runner:
    """One model and its tasks; loaded when the first task needs it."""

    def __init__(
        self,
        name: str,
        model: Checkpoint,
        baseline: Checkpoint,
        tokenizer: Any,
        setting: Setting,
    ) -> None:
        self.name, self.model, self.baseline, self.tokenizer = name, model, baseline, tokenizer
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
        self.live = self.lm = None
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
            self.live = load_live(self.model, layerwise=self.setting.layerwise)
        return self.live

    def _lm(self) -> Any:
        if self.lm is None and self.setting.engine == "vllm":
            self.lm = harness.vllm_model(self.model.path, "auto", self.setting.engine_options)
        elif self.lm is None:
            self.lm = harness.hf_model(
                self._model().module, self.tokenizer, self.setting.batch_size
            )
        return self.lm

    def _mqar(self, rows: int, report: harness.Report) -> list[Score]:
        reader, found = StoredReader(self._model(), self.setting.storage), []
        cells = [{"pairs": load, "length": 0} for load in recall.LOADS] + [LONG_MQAR]
        cells = [cell for cell in cells if cell["pairs"] <= reader.vocabulary // 4]
        for number, cell in enumerate(cells, start=1):
            ids, asked = recall.associations(reader.vocabulary, rows=rows, **cell)
            shares = []
            with torch.inference_mode():
                for part in torch.split(ids, self.setting.batch_size):
                    shares += recall.recalled(part, asked, reader.at(part)(asked)).tolist()
            far = f"_in_{cell['length']}" if cell["length"] else ""
            found.append(self._share("mqar", f"pairs_{cell['pairs']}{far}", shares))
            report(number, len(cells))
        rows_of = zip(*(score.samples for score in found), strict=True)
        means = [sum(row) / len(row) for row in rows_of]
        return [self._share("mqar", "accuracy", means), *found]

    def _reading(self, task: Task, ids: Tensor, report: harness.Report) -> list[Score]:
        """Sequences read beside the baseline: agreement with it and, on own text, perplexity."""
        after: LogitReader = StoredReader(self._model(), self.setting.storage)
        before = after
        if self.model is not self.baseline or self.setting.storage.rounds:
            before = LogitReader(load_live(self.baseline, layerwise=self.setting.layerwise))
        parts = []
        for part in torch.split(ids, self.setting.batch_size):
            parts.append(compare(before, after, part.long()))
            report(min(len(parts) * self.setting.batch_size, len(ids)), len(ids))
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
