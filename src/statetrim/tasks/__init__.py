"""Our own tasks, which read the model's logits; every other name is a task of lm-eval."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import StatetrimError

if TYPE_CHECKING:  # listing tasks imports no libraries
    from .unit import Unit

_NAME = re.compile(r"[\w.:+-]+")
_MQAR_SETTING = re.compile(r"pairs_(\d+)(?:_in_(\d+))?")
_RECALL_OF_LM_EVAL = re.compile(r"fda|swde|squad_completion|niah_.*|ruler.*|babilong.*")
"""Tasks of lm-eval that ask for what stands in the prompt."""


@dataclass(frozen=True)
class Task:
    """A task that needs no lm-eval."""

    metric: str  # on which the verdict is based
    group: str  # perplexity, recall or agreement
    settings: str = ""  # prefix of the metrics of which `metric` is the mean
    reads_text: bool = True  # of `--text`


TASKS = {
    "text": Task("perplexity", "perplexity"),
    "mqar": Task("accuracy", "recall", settings="pairs_", reads_text=False),
    "agreement": Task("kl", "agreement"),
}


def check_names(names: Iterable[str]) -> None:
    """Refuse what cannot be names of tasks; only lm-eval knows all of its own."""
    names = list(names)
    for name in names or ["None"]:
        if not names or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise StatetrimError(
                f"no task has the name {str(name)[:80]!r}; there are {', '.join(TASKS)}, and the "
                f"tasks of lm-eval"
            )


def read_text(names: Iterable[str]) -> bool:
    """Whether one of the tasks reads the user's text."""
    return any(name in TASKS and TASKS[name].reads_text for name in names)


def group_of(task: str, unit: "Unit") -> str:
    """The group whose limits and rules apply to a metric of this unit. For shares of lm-eval's
    tasks it is recall by name, else accuracy, whose limit is stricter."""
    if task in TASKS and TASKS[task].group in unit.groups:
        return TASKS[task].group
    if "recall" in unit.groups and _RECALL_OF_LM_EVAL.fullmatch(task):
        return "recall"
    return unit.groups[0]


def chance_of(task: str, metric: str) -> float | None:
    """The score of guessing in our own tasks, a fraction: 1/N for a metric `pairs_N` of mqar, where
    a guess is one of N values, and 0 for the others. None for tasks of lm-eval."""
    setting = _MQAR_SETTING.fullmatch(metric) if task == "mqar" else None
    if setting:
        return 1 / max(1, int(setting[1]))
    return 0.0 if task in TASKS else None


def setting_text(task: str, metric: str) -> str:
    """A metric for people: `pairs_127` of mqar as "127 pairs", `pairs_16_in_512` as "16 pairs in
    512 tokens". Metrics that are not a setting of their task keep their name."""
    setting = _MQAR_SETTING.fullmatch(metric) if task == "mqar" else None
    if setting is None:
        return metric
    pairs, length = setting.groups()
    return f"{pairs} pairs in {length} tokens" if length else f"{pairs} pairs"
