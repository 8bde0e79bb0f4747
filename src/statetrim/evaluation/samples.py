"""Task -> its samples: rows of lm-eval, or token ids; warns of text that a model has seen."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..artifacts.steps import read_seen_texts
from ..runtime.corpus import Corpus
from ..storage.checkpoint import Checkpoint
from ..tasks import TASKS, recall
from . import harness
from .options import EvaluateOptions

DEFAULT_SAMPLES = 128  # at most, of a task without lm-eval
FIRST_LOOK = 32  # samples, after which they are doubled until the verdict is decided
EVAL_LENGTH = 512  # tokens per evaluated sequence

logger = logging.getLogger("statetrim")


@dataclass(frozen=True, eq=False)
class Samples:
    """A task with its samples: token ids, or a task of lm-eval; MQAR generates its own."""

    task: str
    group: str
    digest: str
    ids: Tensor | None = None  # int32 [sequences, length]
    in_lm_eval: Any = None

    @property
    def uses_harness(self) -> bool:
        return self.in_lm_eval is not None


def looks(most: int, *, all_at_once: bool) -> list[range]:
    """Ranges of samples: FIRST_LOOK, then as many again, up to `most`."""
    stops = [most if all_at_once else min(FIRST_LOOK, most)]
    while stops[-1] < most:
        stops.append(min(2 * stops[-1], most))
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def prepare_samples(
    options: EvaluateOptions, text: Corpus | None, skip: int, tokenizer: Any
) -> list[Samples]:
    """The tasks with their samples, in order; a group of lm-eval is its tasks."""
    names, limit = list(dict.fromkeys(options.tasks)), options.limit
    unsafe_code = options.confirm_run_unsafe_code
    loaded = harness.load_tasks(names, options.data, tokenizer, unsafe_code=unsafe_code)
    result = []
    for name in names:
        if name in TASKS:
            digest = f"seeded, loads {recall.PAIR_COUNTS}, {limit or DEFAULT_SAMPLES} rows"
            ids = None
            if TASKS[name].reads_text:
                assert text is not None
                tokens = (limit or DEFAULT_SAMPLES) * EVAL_LENGTH
                read = text.read(tokens=tokens, length=EVAL_LENGTH, skip=skip)
                ids, digest = read.ids, read.lineage["digest"]
            result.append(Samples(name, TASKS[name].group, digest, ids))
        for task, in_lm_eval in loaded.get(name, {}).items():
            digest = harness.rows_digest(in_lm_eval, limit)
            group = harness.task_group(task, in_lm_eval)
            result.append(Samples(task, group, digest, in_lm_eval=in_lm_eval))
    return result


def warn_of_seen_text(
    models: Mapping[str, Checkpoint], text: Corpus, skip: int, limit: int | None
) -> None:
    """Log which models have seen some of the evaluated text, and how many tokens to skip."""
    first = text.start + skip
    end = first + (limit or DEFAULT_SAMPLES) * EVAL_LENGTH
    names, most_seen, path = [], 0, Path(text.text).absolute()  # a file, or a dataset of the hub
    for name, model in models.items():
        texts = read_seen_texts(model)
        seen = [(x.skip, stop) for x, stop in texts if Path(x.text or "").absolute() == path]
        if any(stop > first and start < end for start, stop in seen):
            names.append(name)
            most_seen = max(most_seen, *(stop for _, stop in seen))
    if names:
        logger.warning(
            "warning: %s was calibrated or trained on the start of %s; to measure on new text, use "
            "--skip %d",
            " and ".join(names),
            text.text,
            most_seen,
        )
