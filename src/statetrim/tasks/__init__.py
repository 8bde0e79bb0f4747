"""All tasks by name: where their rows are, how they become prompts, and their lm-eval definition.

`stock.yaml` runs a stock task of lm-eval on a local file; `recall.yaml` defines our recall tasks.
Three more kinds read the model's logits, without lm-eval: `mqar`, `agreement`, and `text`, on a
file of the user.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Template
from typing import Any, Literal

from ..errors import StatetrimError
from ..storage.text import import_datasets
from . import recall

Kind = Literal["stock", "recall", "mqar", "agreement", "text"]
Row = dict[str, Any]

_DIRECTORY = Path(__file__).parent
_MQAR_SETTING = re.compile(r"pairs_(\d+)(?:_in_(\d+))?")


@dataclass(frozen=True)
class Task:
    """One task: its rows, its metric, and how it is run."""

    name: str
    kind: Kind
    metric: str  # on which the verdict is based
    group: str  # perplexity, accuracy, recall or agreement
    files: str = ""  # glob pattern below the data directory
    stock: str = ""  # YAML below lm_eval/tasks
    hub: str = ""  # dataset on the hub with the same fields
    question: Callable[[Row], recall.Question] | None = None
    chance: float = 0.0  # score of guessing
    settings: str = ""  # prefix of the metrics of which `metric` is the mean

    def chance_of(self, metric: str) -> float:
        """The score of guessing, a fraction: 1/N for a metric `pairs_N` of mqar, where a guess is
        one of N values; else `chance`, whatever the metric."""
        setting = _MQAR_SETTING.fullmatch(metric) if self.kind == "mqar" else None
        return 1 / max(1, int(setting[1])) if setting else self.chance

    def find_file(self, data: Path) -> Path:
        """The file below `data` with this task's rows; refuses none and several."""
        paths = sorted(path for path in data.glob(self.files) if path.is_file())
        if len(paths) != 1:
            count_text = f"{len(paths)} files" if paths else "no file"
            raise StatetrimError(
                f"{self.name} reads {self.files} below {data}, where {count_text} of that name can "
                f"be found; put one there, leave the task out, or leave out --data to use the hub"
            )
        return paths[0]


def _lm_eval_task(name: str, metric: str, files: str, stock: str = "", choices: int = 0) -> Task:
    """A stock task of lm-eval; guessing is right in one of `choices` cases, or never for 0."""
    group = "perplexity" if "perplexity" in metric else "accuracy"
    path, chance = stock or f"{name}/{name}.yaml", 1 / choices if choices else 0.0
    return Task(name, "stock", metric, group, files, path, chance=chance)


def _recall_task(name: str, files: str, hub: str = "", question: Any = None) -> Task:
    """A recall task, scored by `contains`; without `question` its rows are key-value records."""
    return Task(name, "recall", "contains", "recall", files, hub=hub, question=question)


_ALL_TASKS = (
    _lm_eval_task("wikitext", "word_perplexity", "wikitext-2-raw/wiki.test.raw"),
    _lm_eval_task(
        "lambada_openai", "perplexity", "lambada_openai/*.jsonl", "lambada/lambada_openai.yaml"
    ),
    _lm_eval_task("arc_easy", "acc", "arc/arc_easy_test*.jsonl", "arc/arc_easy.yaml", 4),
    _lm_eval_task(
        "arc_challenge", "acc_norm", "arc/arc_challenge_test*.jsonl", "arc/arc_challenge.yaml", 4
    ),
    _lm_eval_task("hellaswag", "acc_norm", "hellaswag/hellaswag_val*.jsonl", choices=4),
    _lm_eval_task("winogrande", "acc", "winogrande/*val*.jsonl", "winogrande/default.yaml", 2),
    _lm_eval_task("piqa", "acc", "piqa/piqa_val*.jsonl", choices=2),
    _recall_task("drop", "drop/*.jsonl", "hazyresearch/based_drop", recall.drop_question),
    _recall_task("fda", "fda/*.jsonl", "hazyresearch/based-fda", recall.keyed_question),
    _recall_task("nq", "nq_with_context/*.jsonl", "hazyresearch/based_nq_2048", recall.nq_question),
    _recall_task("squad", "squad/*.jsonl", "hazyresearch/based-squad", recall.squad_question),
    _recall_task("swde", "swde/*.jsonl", "hazyresearch/based-swde-v2", recall.keyed_question),
    _recall_task(
        "triviaqa", "triviaqa/*.jsonl", "hazyresearch/based_triviaqa", recall.trivia_question
    ),
    # Documents like those of FDA, but other rows: never report these as FDA.
    _recall_task(
        "fda_like", "fda_like_recall/fda_like_recall.jsonl", question=recall.keyed_question
    ),
    _recall_task(
        "fda_like_short",
        "fda_like_recall/fda_like_recall_short.jsonl",
        question=recall.keyed_question,
    ),
    _recall_task("kv_retrieval", "kv_retrieval/*75_keys.jsonl"),
    Task("mqar", "mqar", "accuracy", "recall", settings="pairs_"),
    Task("agreement", "agreement", "kl", "agreement", "wikitext-2-raw/wiki.test.raw"),
    Task("text", "text", "perplexity", "perplexity"),
)
TASKS = {task.name: task for task in _ALL_TASKS}
SUITES = {
    "likelihood": [name for name, task in TASKS.items() if task.kind == "stock"],
    "recall": ["drop", "fda", "nq", "squad", "swde", "triviaqa"],
    "offline": [name for name in TASKS if name not in ("fda", "swde", "triviaqa", "text")],
}
WITHOUT_HARNESS = ("mqar", "agreement", "text")


def find_tasks(names: Sequence[str]) -> list[Task]:
    """Tasks by name, without duplicates; a suite's name stands for its tasks. Refuses other names,
    and no name at all."""
    selected = list[str]()
    for name in names:
        selected += SUITES.get(name, [name])
    unknown = [name for name in selected if name not in TASKS]
    if unknown or not selected:
        name = unknown[0] if unknown else "None"
        raise StatetrimError(
            f"no task has the name {str(name)[:80]!r}; there are {', '.join(TASKS)}, and the "
            f"suites {', '.join(SUITES)}"
        )
    return [TASKS[name] for name in dict.fromkeys(selected)]


def setting_text(task: str, metric: str) -> str:
    """A metric for people: `pairs_127` of mqar as "127 pairs", `pairs_16_in_512` as "16 pairs in
    512 tokens". Metrics that are not a setting of their task keep their name."""
    definition = TASKS.get(task)
    setting = _MQAR_SETTING.fullmatch(metric) if definition and definition.kind == "mqar" else None
    if setting is None:
        return metric
    pairs, length = setting.groups()
    return f"{pairs} pairs in {length} tokens" if length else f"{pairs} pairs"


def prepare_rows(
    task: Task, source: Path | None, spans: recall.Spans, limit: int | None
) -> list[Row]:
    """The first `limit` rows (None: all) of `source` (None: of the hub) for lm-eval: as prompts in
    recall tasks, where rows without an answer are dropped, and as documents in wikitext."""
    if task.name == "wikitext" and source is not None:
        return [{"page": page} for page in islice(wikitext_pages(source), limit)]
    rows = islice(_read_rows(task, source), limit)
    if task.kind == "stock":
        return list(rows)
    try:
        if task.question is None:
            prompts = [(row, recall.key_value_prompt(row, spans)) for row in rows]
            return [{"prompt": text, "answers": [[row["value"]]]} for row, text in prompts]
        questions = [task.question(row) for row in rows]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StatetrimError(
            f"a row of {source or task.hub} is not what {task.name} expects: {error!r}"
        ) from None
    prepared = list[Row]()
    for question in questions:
        if any(question.answers):
            prompt = recall.build_prompt(question, spans)
            prepared.append({"prompt": prompt, "answers": question.answers})
    return prepared


def wikitext_pages(path: Path) -> Iterator[str]:
    """The documents of a WikiText file, each starting with ' = Title = '."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        title = line.replace("= = =", "===").replace("= =", "==").strip()
        if title.startswith("= ") and title.endswith(" ="):
            if "".join(lines).strip():
                yield "\n".join(lines)
            lines = []
        lines.append(line)
    if "".join(lines).strip():
        yield "\n".join(lines)


def write_definition(task: Task, rows: list[Row], directory: Path, stock: Path) -> None:
    """Write rows and definition to the existing `directory`, as NAME.jsonl and NAME.yaml; `stock`
    is the directory lm_eval/tasks."""
    path = directory / f"{task.name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    template = Template((_DIRECTORY / f"{task.kind}.yaml").read_text(encoding="utf-8"))
    text = template.safe_substitute(
        task=task.name,
        rows=json.dumps(str(path)),  # a JSON string is a YAML string
        cache=json.dumps(str(directory / "cache")),
        stock=json.dumps(str(stock / task.stock)),
    )
    (directory / f"{task.name}.yaml").write_text(text, encoding="utf-8")


def score(row: Row, results: list[str]) -> dict[str, int]:
    """The metric of one row of a recall task; lm-eval calls this (`recall.yaml`)."""
    return {"contains": int(recall.contains(results[0], row["answers"]))}


def _read_rows(task: Task, source: Path | None) -> Iterator[Row]:
    """The rows of a JSON Lines file, or of the hub without `source`."""
    if source is None:
        yield from _hub_rows(task)
        return
    with source.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False).encode()  # fails on half a surrogate pair
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise StatetrimError(f"{source}, line {number}, is not a JSON object of sound text")
            yield row


def _hub_rows(task: Task) -> Iterator[Row]:
    """The validation split of the task's dataset on the hub."""
    if not task.hub:
        raise StatetrimError(
            f"{task.name} is on no hub; give --data, a directory with {task.files}"
        )
    try:
        rows = import_datasets().load_dataset(task.hub, split="validation")
    except Exception as error:
        reason = re.sub(r"\s+", " ", str(error))[:200]
        raise StatetrimError(
            f"without --data {task.name} is read from the hub ({task.hub}); that failed: {reason}"
        ) from None
    yield from rows
