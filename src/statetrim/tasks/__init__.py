"""The tasks by name: where their rows lie, how they become prompts, which lm-eval definition runs.

`stock.yaml` puts a stock task of lm-eval on a local file; `recall.yaml` is ours. Three more kinds
need the model's logits rather than text, and run without lm-eval: `mqar`, `agreement` and `text`,
which is the user's own.
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


@dataclass(frozen=True)
class Task:
    """One task, and where to find it."""

    name: str
    kind: Kind
    metric: str  # the one the verdict is about
    group: str  # perplexity, accuracy, recall or agreement
    files: str = ""  # pattern below the data directory
    stock: str = ""  # YAML below lm_eval/tasks
    hub: str = ""  # dataset with the same fields, where a hub is reachable
    question: Callable[[Row], recall.Question] | None = None
    chance: float = 0.0  # what guessing scores
    settings: str = ""  # how the metrics begin that `metric` is the mean of

    def chance_of(self, metric: str) -> float:
        """What guessing scores; of several pairs, a guess is one of those seen."""
        pairs = re.match(r"pairs_(\d+)", metric) if self.kind == "mqar" else None
        return 1 / max(1, int(pairs[1])) if pairs else self.chance

    def find_file(self, data: Path) -> Path:
        """The one file below `data` that holds this task's rows."""
        paths = sorted(path for path in data.glob(self.files) if path.is_file())  # no pipe
        if len(paths) != 1:
            count_text = f"{len(paths)} files" if paths else "no file"
            raise StatetrimError(
                f"{self.name} reads {self.files} below {data}, where {count_text} of that name can be "
                f"found; put one there, leave the task out, or leave out --data to use the hub"
            )
        return paths[0]


def _lm_eval_task(name: str, metric: str, files: str, stock: str = "", choices: int = 0) -> Task:
    group = "perplexity" if "perplexity" in metric else "accuracy"
    path, chance = stock or f"{name}/{name}.yaml", 1 / choices if choices else 0.0
    return Task(name, "stock", metric, group, files, path, chance=chance)


def _recall_task(name: str, files: str, hub: str = "", question: Any = None) -> Task:
    return Task(name, "recall", "contains", "recall", files, hub=hub, question=question)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _lm_eval_task("wikitext", "word_perplexity", "wikitext-2-raw/wiki.test.raw"),
        _lm_eval_task(
            "lambada_openai", "perplexity", "lambada_openai/*.jsonl", "lambada/lambada_openai.yaml"
        ),
        _lm_eval_task("arc_easy", "acc", "arc/arc_easy_test*.jsonl", "arc/arc_easy.yaml", 4),
        _lm_eval_task(
            "arc_challenge",
            "acc_norm",
            "arc/arc_challenge_test*.jsonl",
            "arc/arc_challenge.yaml",
            4,
        ),
        _lm_eval_task("hellaswag", "acc_norm", "hellaswag/hellaswag_val*.jsonl", choices=4),
        _lm_eval_task("winogrande", "acc", "winogrande/*val*.jsonl", "winogrande/default.yaml", 2),
        _lm_eval_task("piqa", "acc", "piqa/piqa_val*.jsonl", choices=2),
        _recall_task("drop", "drop/*.jsonl", "hazyresearch/based_drop", recall.drop_question),
        _recall_task("fda", "fda/*.jsonl", "hazyresearch/based-fda", recall.keyed_question),
        _recall_task(
            "nq",
            "nq_with_context/*.jsonl",
            "hazyresearch/based_nq_2048",
            recall.natural_questions_question,
        ),
        _recall_task("squad", "squad/*.jsonl", "hazyresearch/based-squad", recall.squad_question),
        _recall_task("swde", "swde/*.jsonl", "hazyresearch/based-swde-v2", recall.keyed_question),
        _recall_task(
            "triviaqa", "triviaqa/*.jsonl", "hazyresearch/based_triviaqa", recall.trivia_question
        ),
        # Documents like those of FDA, but not its rows: never to be reported as FDA.
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
}
SUITES = {
    "likelihood": [name for name, task in TASKS.items() if task.kind == "stock"],
    "recall": ["drop", "fda", "nq", "squad", "swde", "triviaqa"],
    "offline": [name for name in TASKS if name not in ("fda", "swde", "triviaqa", "text")],
}


WITHOUT_HARNESS = ("mqar", "agreement", "text")


def find_tasks(names: Sequence[str]) -> list[Task]:
    """Tasks by name; the name of a suite stands for its tasks, each of which runs once."""
    selected = dict.fromkeys(inner for name in names for inner in SUITES.get(name, [name]))
    unknown = next((name for name in selected if name not in TASKS), None)
    if unknown is not None or not selected:
        raise StatetrimError(
            f"no task has the name {str(unknown)[:80]!r}; there are {', '.join(TASKS)}, and the "
            f"suites {', '.join(SUITES)}"
        )
    return [TASKS[name] for name in selected]


def prepare_rows(
    task: Task, source: Path | None, spans: recall.Spans, limit: int | None
) -> list[Row]:
    """The rows lm-eval will read: cut prompts for recall, whole documents for wikitext."""
    if task.name == "wikitext" and source is not None:
        return list(islice(({"page": page} for page in wikitext_pages(source)), limit))
    rows = islice(_read_rows(task, source), limit)
    if task.kind == "stock":
        return list(rows)
    try:
        if task.question is None:
            return [_key_value_row(row, spans) for row in rows]
        questions = [task.question(row) for row in rows]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StatetrimError(
            f"a row of {source or task.hub} is not what {task.name} expects: {error!r}"
        ) from None
    answerable = [question for question in questions if any(question.answers)]
    return [{"prompt": recall.build_prompt(q, spans), "answers": q.answers} for q in answerable]


def wikitext_pages(path: Path) -> Iterator[str]:
    """The documents of a WikiText file as in the document-level set: one for each ' = Title = '."""
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
    """Write rows and definition to `directory`, where lm-eval finds the task by its name."""
    path = directory / f"{task.name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    template = Template((_DIRECTORY / f"{task.kind}.yaml").read_text(encoding="utf-8"))
    names = {"rows": path, "cache": directory / "cache", "stock": stock / task.stock}
    filled = {name: json.dumps(str(value)) for name, value in names.items()}  # JSON is YAML
    text = template.safe_substitute(filled, task=task.name)
    (directory / f"{task.name}.yaml").write_text(text, encoding="utf-8")


def score(row: Row, results: list[str]) -> dict[str, int]:
    """What lm-eval calls for each row of a recall task."""
    return {"contains": int(recall.contains(results[0], row["answers"]))}


def _key_value_row(row: Row, spans: recall.Spans) -> Row:
    return {"prompt": recall.key_value_prompt(row, spans), "answers": [[row["value"]]]}


def _read_rows(task: Task, source: Path | None) -> Iterator[Row]:
    if source is None:
        yield from _hub_rows(task)
        return
    with source.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair cannot be
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise StatetrimError(f"{source}, line {number}, is not a JSON object of sound text")
            yield row


def _hub_rows(task: Task) -> Iterator[Row]:
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
