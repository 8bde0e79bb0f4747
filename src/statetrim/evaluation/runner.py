"""Runs the tasks of one model, in transformers or in vLLM; keeps what the original gave on each."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..artifacts.scores import Score
from ..errors import StatetrimError
from ..progress import OnProgress, Progress
from ..runtime.kernel_hooks import masked
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.logits import FinalHiddenStates, LogitReader, LogitsAt, compare_logits
from ..runtime.placement import Placement
from ..runtime.states import StateStorage, stored_states
from ..storage.checkpoint import Checkpoint
from ..tasks import TASKS, read_text, recall
from ..tasks.unit import NATS, PERPLEXITY, SHARE
from . import harness
from .controls import MaskedModel
from .options import EvaluateOptions
from .samples import DEFAULT_SAMPLES, Samples

LONG_MQAR = {"pairs": 16, "length": 512}  # few pairs, long before their queries
MQAR_TOKENS = 4 * sum(recall.PAIR_COUNTS) + LONG_MQAR["length"]  # of one sample of every setting

VLLM_BATCH = 256
"""Sequences passed to vLLM at a time, which schedules them itself. Not "auto": lm-eval then asks
vLLM for a progress bar, and vLLM divides by the elapsed time of a disabled bar."""


def check_tasks(options: EvaluateOptions) -> None:
    """Raise StatetrimError if the tasks cannot be run with these options."""
    if (options.text is not None) != read_text(options.tasks):
        raise StatetrimError(
            "the tasks 'text' and 'agreement' go together with --text SOURCE; give both or neither"
        )
    for name in options.tasks:
        if options.in_vllm and name in TASKS:
            raise StatetrimError(f"{name} reads the model's own logits, so it needs --engine hf")
        if options.layerwise and name not in TASKS:
            raise StatetrimError(
                f"{name} needs the whole model in memory; layerwise runs {', '.join(TASKS)}"
            )


@dataclass(eq=False)
class OriginalResults:
    """The original's scores, and its final hidden states of each task's sequences, kept to compare
    cuts with; both by task and first sample. Several evaluations of the same tasks and samples may
    share them."""

    checkpoint: Checkpoint
    placement: Placement
    scores: dict[tuple[str, int], list[Score]] = field(default_factory=dict)
    states: dict[tuple[str, int], FinalHiddenStates] = field(default_factory=dict)

    def read(
        self,
        key: tuple[str, int],
        batches: list[Tensor],
        live: LiveModel | None = None,
        report: Callable[[int], None] = lambda batch: None,
    ) -> FinalHiddenStates:
        """The states of a task's sequences, computed on the first call: by `live`, or by a model
        that is loaded for it and unloaded again."""
        if key not in self.states:
            loaded = live or load_live(self.checkpoint, self.placement)
            self.states[key] = FinalHiddenStates(loaded, batches, report)
            if live is None:
                self.unload()
        return self.states[key]

    def unload(self) -> None:
        """Free the decoder layers; the head stays, to compute logits."""
        for states in self.states.values():
            states.unload_layers()


@dataclass(eq=False)
class ModelRunner:
    """Runs tasks on one model, which is loaded when the first task needs it."""

    name: str
    model: Checkpoint
    original: OriginalResults
    tokenizer: Any
    options: EvaluateOptions
    storage: StateStorage
    masked: MaskedModel | None = None  # what is masked in the original
    live: LiveModel | None = None
    lm: Any = None  # lm-eval's model

    def run(self, samples: Samples, rows: range, progress: OnProgress) -> list[Score]:
        """A score per metric of the task on samples `rows`, of which lm-eval takes the first ones;
        loads the model if that was not done yet."""
        task = samples.task

        def report(done: int, total: int) -> None:
            progress(Progress(done, total, "samples", f"{self.name}: {task}"))

        report(0, 1)
        if task == "mqar":
            return self._score_mqar(rows, report)
        if samples.ids is not None:
            return self._score_against_original(task, samples.ids, rows, report)
        limit = self.options.limit if self.masked is None else rows.stop
        # vLLM has its own dtypes of states.
        with nullcontext() if self.options.in_vllm else self._under_test():
            return harness.run_task(
                self._load_lm(),
                self.name,
                task,
                samples.in_lm_eval,
                limit,
                report,
                unsafe_code=self.options.confirm_run_unsafe_code,
            )

    def _under_test(self) -> AbstractContextManager[None]:
        """Within, the states of the model are stored as asked for, or what its plan prunes is
        masked; no model needs both."""
        live = self._load_model()
        if self.masked is not None:
            return masked(live, self.masked.plan)
        return stored_states(live, self.storage)

    def close(self, following: "ModelRunner | None") -> None:
        """Free the memory of this model and of the original's layers; the original's hidden states
        and head stay. A model that was masked is passed on to the runner after this one."""
        if self.masked is not None and following is not None:
            following.live = self.live
        self.live = self.lm = None
        self.original.unload()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _load_model(self) -> LiveModel:
        """The model in transformers, loaded on the first call."""
        if self.live is None:
            self.live = load_live(self.model, self.options.placement)
        return self.live

    def _load_lm(self) -> Any:
        """lm-eval's model for the engine, made on the first call."""
        if self.lm is None and self.options.in_vllm:
            self.lm = harness.load_vllm_model(
                self.model.path, VLLM_BATCH, self.options.vllm_options
            )
        elif self.lm is None:
            self.lm = harness.wrap_hf_model(
                self._load_model().module, self.tokenizer, self.options.batch_size
            )
        return self.lm

    def _score_mqar(self, rows: range, report: harness.ProgressCallback) -> list[Score]:
        """Recall of generated sequences per number of pairs that the vocabulary allows, of which
        `rows` are taken; a sample is the fraction of a sequence's values that are recalled. First
        comes "accuracy", the mean over the numbers of pairs."""
        vocabulary = int(self._load_model().lm_head.weight.shape[0])
        names, batches, positions = list[str](), list[Tensor](), list[Tensor]()
        for cell in [*({"pairs": n, "length": 0} for n in recall.PAIR_COUNTS), LONG_MQAR]:
            if cell["pairs"] > vocabulary // 4:
                continue
            suffix = f"_in_{cell['length']}" if cell["length"] else ""
            names.append(f"pairs_{cell['pairs']}{suffix}")
            count, seed = self.options.limit or DEFAULT_SAMPLES, self.options.recall_seed
            ids, answers_at = recall.associations(vocabulary, rows=count, seed=seed, **cell)
            for batch in torch.split(ids[rows.start : rows.stop], self.options.batch_size):
                batches.append(batch)
                positions.append(answers_at)
        on_read, on_answered = _progress_callbacks(
            report,
            len(names) * len(rows),
            min(len(rows), self.options.batch_size),
            read_first=self.options.layerwise,
        )
        logits_of = self._logits_by_batch(batches, on_read)
        shares: list[float] = []
        for number, batch in enumerate(batches):
            with torch.inference_mode():
                logits = logits_of(number)(positions[number])
                shares += recall.recalled_share(batch, positions[number], logits).tolist()
            on_answered(number + 1)
        scores, means = list[Score](), list[float]()
        for index, name in enumerate(names):
            row_shares = shares[index * len(rows) : (index + 1) * len(rows)]
            scores.append(self._share_score("mqar", name, row_shares))
        for row in zip(*(score.samples for score in scores), strict=True):
            means.append(sum(row) / len(row))
        return [self._share_score("mqar", "accuracy", means), *scores]

    def _score_against_original(
        self, task: str, all_ids: Tensor, rows: range, report: harness.ProgressCallback
    ) -> list[Score]:
        """Perplexity, for the task "text" only, then KL and top-1 agreement with the original; a
        sample is one of `rows` of the ids. Unloads this model while the original must run."""
        size, ids = self.options.batch_size, all_ids[rows.start : rows.stop]
        batches, original_states = list(torch.split(ids.long(), size)), None
        is_original = self.model is self.original.checkpoint and not self.storage.is_lossy
        is_original = is_original and self.masked is None
        key = task, rows.start
        read_first = is_original or self.options.layerwise
        on_read, on_compared = _progress_callbacks(report, len(ids), size, read_first=read_first)
        model_logits: Callable[[int], LogitsAt]
        if is_original:
            states = self.original.read(key, batches, self._load_model(), on_read)
            model_logits = states.logits_at
        else:
            if key not in self.original.states:
                self.live = self.lm = None  # both models may not fit in memory
            original_states = self.original.read(key, batches)
            model_logits = self._logits_by_batch(batches, on_read)
        kl, top1, log_likelihood = list[float](), list[float](), list[float]()
        for number, batch in enumerate(batches):
            with torch.inference_mode():
                new = model_logits(number)
                old = new if original_states is None else original_states.logits_at(number)
            comparison = compare_logits(old, new, batch)
            if not bool(comparison.kl.isfinite().all()):
                raise StatetrimError(f"{self.name} gives logits that are not numbers")
            kl += comparison.kl.tolist()
            top1 += comparison.same_top_token.tolist()
            log_likelihood += comparison.log_likelihood.tolist()
            on_compared(number + 1)
        scores = [
            Score(self.name, task, "kl", NATS.name, False, kl),
            self._share_score(task, "top1", top1),
        ]
        if task == "text":
            tokens = [float(ids.shape[1] - 1)] * len(ids)  # predicted tokens per sequence
            score = Score(
                self.name, "text", "perplexity", PERPLEXITY.name, False, log_likelihood, tokens
            )
            scores.insert(0, score)
        return scores

    def _logits_by_batch(
        self, batches: list[Tensor], on_read: Callable[[int], None]
    ) -> Callable[[int], LogitsAt]:
        """Batch number -> its logits; layerwise, all are read at once, each weight once."""
        if self.options.layerwise:
            with self._under_test():
                return FinalHiddenStates(self._load_model(), batches, on_read).logits_at
        reader = LogitReader(self._load_model())

        def logits_of(number: int) -> LogitsAt:
            with self._under_test():
                return reader.forward(batches[number])

        return logits_of

    def _share_score(self, task: str, metric: str, samples: list[float]) -> Score:
        return Score(self.name, task, metric, SHARE.name, True, samples)


def _progress_callbacks(
    report: harness.ProgressCallback, total: int, batch_size: int, *, read_first: bool
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Callbacks for the number of batches that were read, and compared. With `read_first` all are
    read before, and each of the two counts for half of the progress; else the second for all."""

    def on_read(batches: int) -> None:
        report(min(batches * batch_size, total) // 2, total)

    def on_compared(batches: int) -> None:
        done = min(batches * batch_size, total)
        report((total + done) // 2 if read_first else done, total)

    return on_read, on_compared
