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
from ..runtime.final_hidden import FinalHiddenStates
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.logits import LogitsAt, compare_logits
from ..runtime.placement import Placement
from ..runtime.states.stored import StateStorage, StoredStateReader, stored_states
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
    def vllm_options(self) -> dict[str, Any]:
        """vLLM's own options; where a model is to be spread, over all GPUs unless they say."""
        parallelism = (
            {"tensor_parallel_size": self.placement.num_gpus} if self.placement.device_map else {}
        )
        return {**parallelism, **self.engine_options}

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
        if self.storage.is_lossy and self.engine == "vllm":
            raise StatetrimError(
                "--state-dtype rounds in transformers; vLLM has its own: "
                "--engine-option mamba_ssm_cache_dtype=bfloat16"
            )
        logit_task = next((task.name for task in tasks if task.kind in WITHOUT_HARNESS), None)
        if self.engine == "vllm" and logit_task:
            raise StatetrimError(
                f"{logit_task} reads the model's own logits, so it needs --engine hf"
            )
        harness_task = next((task.name for task in tasks if task.kind not in WITHOUT_HARNESS), None)
        if self.placement.layerwise and harness_task:
            raise StatetrimError(
                f"{harness_task} needs the whole model in memory; layerwise runs "
                f"{', '.join(WITHOUT_HARNESS)}"
            )


class OriginalHiddenStates:
    """What the model before the cut read, for the others to be compared with."""

    def __init__(self, checkpoint: Checkpoint, placement: Placement) -> None:
        self.checkpoint, self.placement = checkpoint, placement
        self._by_task: dict[str, FinalHiddenStates] = {}

    def read(
        self,
        task: str,
        batches: list[Tensor],
        live: LiveModel | None = None,
        report: Callable[[int], None] = lambda batch: None,
    ) -> FinalHiddenStates:
        """The reading of a task, which may have been made before; else by `live`, or by a model
        that is loaded for it and let go."""
        if task not in self._by_task:
            loaded = live or load_live(self.checkpoint, self.placement)
            self._by_task[task] = FinalHiddenStates(loaded, batches, report)
            if live is None:
                self.unload()
        return self._by_task[task]

    def has_task(self, task: str) -> bool:
        return task in self._by_task

    def unload(self) -> None:
        for reading in self._by_task.values():
            reading.unload_layers()


class ModelRunner:
    """One model and its tasks; loaded when the first task needs it."""

    def __init__(
        self,
        name: str,
        model: Checkpoint,
        original: OriginalHiddenStates,
        tokenizer: Any,
        setting: Setting,
    ) -> None:
        self.name, self.model, self.original, self.tokenizer = name, model, original, tokenizer
        self.setting = setting
        self.live: LiveModel | None = None
        self.lm: Any = None

    def run(self, samples: Samples, limit: int | None, progress: OnProgress) -> list[Score]:
        task = samples.task

        def report(done: int, total: int) -> None:
            progress(Progress(done, total, "samples", f"{self.name}: {task.name}"))

        report(0, 1)
        if task.kind == "mqar":
            return self._score_mqar(limit or MQAR_ROWS, report)
        if samples.ids is not None:
            return self._score_against_original(task, samples.ids, report)
        assert samples.directory is not None
        with self._rounded_states():
            return harness.run_task(
                self._load_lm(), self.name, task, samples.directory, limit, report
            )

    def close(self) -> None:
        """Make room for the next model."""
        self.live = self.lm = None
        self.original.unload()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _rounded_states(self) -> AbstractContextManager[None]:
        """Within, the model's states are stored as asked; vLLM stores its own."""
        if self.setting.engine == "vllm":
            return nullcontext()
        return stored_states(self._load_model(), self.setting.storage)

    def _load_model(self) -> LiveModel:
        if self.live is None:
            self.live = load_live(self.model, self.setting.placement)
        return self.live

    def _load_lm(self) -> Any:
        if self.lm is None and self.setting.engine == "vllm":
            self.lm = harness.load_vllm_model(
                self.model.path, VLLM_BATCH, self.setting.vllm_options
            )
        elif self.lm is None:
            self.lm = harness.wrap_hf_model(
                self._load_model().module, self.tokenizer, self.setting.batch_size
            )
        return self.lm

    def _score_mqar(self, rows: int, report: harness.ProgressCallback) -> list[Score]:
        vocabulary = int(self._load_model().lm_head.weight.shape[0])
        cells = [{"pairs": load, "length": 0} for load in recall.PAIR_COUNTS] + [LONG_MQAR]
        cells = [cell for cell in cells if cell["pairs"] <= vocabulary // 4]
        generated = [recall.associations(vocabulary, rows=rows, **cell) for cell in cells]
        batches = [
            (batch, answer_positions)
            for ids, answer_positions in generated
            for batch in torch.split(ids, self.setting.batch_size)
        ]
        layerwise = self.setting.placement.layerwise
        on_read, on_answered = _progress_callbacks(report, len(batches), read_first=layerwise)
        logits_of = self._logits_by_batch([ids for ids, _ in batches], on_read)
        shares, scores = list[float](), list[Score]()
        for number, (ids, answer_positions) in enumerate(batches):
            with torch.inference_mode():
                shares += recall.recalled_share(
                    ids, answer_positions, logits_of(number)(answer_positions)
                ).tolist()
            on_answered(number + 1)
        for index, cell in enumerate(cells):
            suffix = f"_in_{cell['length']}" if cell["length"] else ""
            name = f"pairs_{cell['pairs']}{suffix}"
            scores.append(
                self._share_score("mqar", name, shares[index * rows : (index + 1) * rows])
            )
        samples_by_row = zip(*(score.samples for score in scores), strict=True)
        means = [sum(row) / len(row) for row in samples_by_row]
        return [self._share_score("mqar", "accuracy", means), *scores]

    def _score_against_original(
        self, task: Task, ids: Tensor, report: harness.ProgressCallback
    ) -> list[Score]:
        """Sequences compared with the baseline: agreement with it and, on own text, perplexity."""
        size = self.setting.batch_size
        batches, original_states = list(torch.split(ids.long(), size)), None
        is_original = self.model is self.original.checkpoint and not self.setting.storage.is_lossy
        read_first = is_original or self.setting.placement.layerwise
        on_read, on_compared = _progress_callbacks(report, len(ids), size, read_first=read_first)
        model_logits: Callable[[int], LogitsAt]
        if is_original:
            model_logits = self.original.read(
                task.name, batches, self._load_model(), on_read
            ).logits_at
        else:
            if not self.original.has_task(task.name):
                self.live = self.lm = None  # two may not fit
            original_states = self.original.read(task.name, batches)
            model_logits = self._logits_by_batch(batches, on_read)
        comparisons = []
        for number, batch in enumerate(batches):
            with torch.inference_mode():
                new = model_logits(number)
                old = new if original_states is None else original_states.logits_at(number)
            comparisons.append(compare_logits(old, new, batch))
            on_compared(number + 1)
        kl, likelihood = (
            torch.cat([getattr(comparison, name) for comparison in comparisons])
            for name in ("kl", "log_likelihood")
        )
        if not bool(kl.isfinite().all()):
            raise StatetrimError(f"{self.name} gives logits that are not numbers")
        top1 = torch.cat([comparison.same_top_token for comparison in comparisons]).tolist()
        scores = [
            Score(self.name, task.name, "kl", "nats", False, kl.tolist()),
            self._share_score(task.name, "top1", top1),
        ]
        if task.kind == "text":
            predicted_tokens = [float(ids.shape[1] - 1)] * len(ids)  # tokens that were foretold
            perplexity = Score(
                self.name,
                "text",
                "perplexity",
                "perplexity",
                False,
                likelihood.tolist(),
                predicted_tokens,
            )
            scores.insert(0, perplexity)
        return scores

    def _logits_by_batch(
        self, batches: list[Tensor], on_read: Callable[[int], None]
    ) -> Callable[[int], LogitsAt]:
        """Gives the logits of a batch; weights on disk are read once for all of them."""
        storage = self.setting.storage
        if self.setting.placement.layerwise:
            with stored_states(self._load_model(), storage):
                return FinalHiddenStates(self._load_model(), batches, on_read).logits_at
        reader = StoredStateReader(self._load_model(), storage)
        return lambda number: reader.forward(batches[number])

    def _share_score(self, task: str, metric: str, samples: list[float]) -> Score:
        return Score(self.name, task, metric, "share", True, samples)


def _progress_callbacks(
    report: harness.ProgressCallback, total: int, batch_size: int = 1, *, read_first: bool
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """What reading and what comparing batches of `size` report to. Where everything is read before
    the first is compared, each is half of the whole, so that nothing is counted twice."""

    def report_batch(batches: int, halves_done: int) -> None:
        done = min(batches * batch_size, total)
        report((done + halves_done * total) // 2 if read_first else done, total)

    return lambda batch: report_batch(batch, 0), lambda batch: report_batch(batch, 1)
