"""Recall tasks: prompts, answers, and multi-query associative recall.

The six tasks of the paper follow its recall suite (prefix-linear-attention): the document is cut to
2K tokens around the answer, and a greedy continuation of at most 48 tokens is right if it contains
the answer, ignoring case. A tokenizer is passed as `spans`, the character span of each token.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # listing tasks does not import torch
    from torch import Tensor

CONTEXT_TOKENS = 2048
ANSWER_TOKENS = 50  # of these, reserved for the answer
PAIR_COUNTS = (4, 8, 16, 32, 63, 127)

Spans = Callable[[str], list[tuple[int, int]]]
"""Text -> [start, end) character positions of its tokens."""


@dataclass(frozen=True)
class Question:
    """A document, a question about it, and the accepted answers."""

    document: str
    question: str  # text after the document, with the separator
    answers: list[list[str]]  # right if the prediction has all parts of one of them
    anchors: list[str]  # a long document is cut around the first of these; none: to its beginning


def contains(prediction: str, answers: Sequence[Sequence[str]]) -> bool:
    """Whether the prediction has all parts of one of the answers, ignoring case; an answer without
    parts, or with an empty one, does not count."""
    text = prediction.lower()
    return any(parts and all(p and p.lower() in text for p in parts) for parts in answers)


def build_prompt(question: Question, spans: Spans) -> str:
    """Document and question, which leave room for the answer; only the document is cut."""
    max_tokens = CONTEXT_TOKENS - ANSWER_TOKENS
    room = max_tokens - len(spans(question.question))
    document = cut_window(question.document, question.anchors, spans, max(room, 0))
    # Two texts joined may have more tokens than the sum.
    while document and len(spans(document + question.question)) > max_tokens:
        room -= 1
        document = cut_window(question.document, question.anchors, spans, room)
    return document + question.question


def cut_window(document: str, anchors: Sequence[str], spans: Spans, max_tokens: int) -> str:
    """At most `max_tokens` tokens of a document, half of them before the earliest occurrence of an
    anchor; without one its beginning. Near the end of the document the window is shorter, as in the
    suite."""
    tokens = spans(document)
    if len(tokens) <= max_tokens:
        return document
    if max_tokens <= 0:
        return ""
    starts = [document.lower().find(anchor.lower()) for anchor in anchors if anchor]
    first = min((start for start in starts if start >= 0), default=-1)
    centre = sum(end <= first for _, end in tokens)
    start = max(0, centre - max_tokens // 2)
    stop = min(len(tokens), start + max_tokens)
    return document[tokens[start][0] : tokens[stop - 1][1]]


def keyed_question(row: dict[str, Any]) -> Question:
    """FDA and SWDE: `text` ends with the requested key, which becomes the question; the summary of
    SWDE is removed."""
    key, value = str(row["key"]).strip(), str(row["value"]).strip()
    text = str(row["text"]).partition("Summary of information above...")[0].strip()
    while text.lower().endswith(f"{key}:".lower()):
        text = text[: -len(key) - 1].strip()
    question = f". {key[:1].upper()}{key[1:]}:"
    return Question(text.strip("."), question, [[value]], [key, value])


def squad_question(row: dict[str, Any]) -> Question:
    """SQuAD: `text` is the whole prompt; any of the answers is accepted."""
    document, question = _split_question(str(row["text"]).strip())
    answers = row.get("answers") or [row["value"]]
    return Question(document, question, _answer_parts(answers), [str(row["value"]).strip()])


def nq_question(row: dict[str, Any]) -> Question:
    """Natural Questions: a passage and a question; long passages are cut around the answer."""
    document, question = _document_and_question(row)
    answers = _answer_parts(row["answers"])
    return Question(document, question, answers, answers[0][:1])


def drop_question(row: dict[str, Any]) -> Question:
    """DROP: an answer may have several parts; long passages keep their beginning."""
    document, question = _document_and_question(row)
    return Question(document, question, _answer_parts(row["answers"]), [])


def trivia_question(row: dict[str, Any]) -> Question:
    """TriviaQA: source markers are removed; long passages keep their beginning."""
    document, question = _document_and_question(row)
    document = re.sub(r"\[(PAR|DOC|TLE)\]", "", document).strip()
    return Question(document, question, _answer_parts(row["answers"]), [])


def key_value_prompt(
    row: dict[str, Any], spans: Spans, max_tokens: int = CONTEXT_TOKENS - ANSWER_TOKENS
) -> str:
    """Key-value retrieval: the requested pair among as many others as fit in `max_tokens`, evenly
    spread and in their order. Raises ValueError if no record has the key."""
    records: list[list[str]] = row["ordered_kv_records"]
    index = [key for key, _ in records].index(row["key"])
    others = [*range(index), *range(index + 1, len(records))]
    fits, too_many = 0, len(others) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        text = _records_prompt(records, row["key"], {index, *_evenly_spread(others, middle)})
        fits, too_many = (middle, too_many) if len(spans(text)) <= max_tokens else (fits, middle)
    return _records_prompt(records, row["key"], {index, *_evenly_spread(others, fits)})


def associations(
    vocabulary: int, pairs: int, rows: int, *, length: int = 0, seed: int = 0
) -> "tuple[Tensor, Tensor]":
    """Multi-query associative recall: token ids [rows, time] and key positions [pairs].

    Keys are distinct tokens of the second quarter of the vocabulary, values of the third. Pairs
    `k v k v ...` come once, then all again in another order; the model is to predict the values
    after these later keys, whose positions are returned. With `length` above 4 * pairs, tokens of
    the last quarter fill the gap between the halves.
    """
    import torch

    quarter = vocabulary // 4
    generator = torch.Generator().manual_seed(seed)

    def distinct() -> "Tensor":
        return torch.rand(rows, quarter, generator=generator).topk(pairs, dim=-1).indices

    pair = torch.stack([quarter + distinct(), 2 * quarter + distinct()], -1)
    order = torch.rand(rows, pairs, generator=generator).argsort(-1)
    repeated = pair.gather(1, order.unsqueeze(-1).expand(-1, -1, 2))
    gap = max(0, length - 4 * pairs)
    filler = 3 * quarter + torch.randint(quarter, (rows, gap), generator=generator)
    ids = torch.cat([pair.flatten(1), filler, repeated.flatten(1)], 1)
    return ids, 2 * pairs + gap + 2 * torch.arange(pairs)


def recalled_share(ids: "Tensor", positions: "Tensor", logits: "Tensor") -> "Tensor":
    """Share of each row's values that are the top prediction, float64 [rows]; `logits` [rows,
    pairs, vocabulary] are those at `positions`."""
    return (logits.argmax(-1) == ids[:, positions + 1].to(logits.device)).double().mean(-1).cpu()


def _document_and_question(row: dict[str, Any]) -> tuple[str, str]:
    """(document, question) of a row with `text`, or with `context` and `question`; there a question
    repeated at the end of the document is removed."""
    if "text" in row:
        return _split_question(str(row["text"]).strip())
    document, question = str(row["context"]).strip(), str(row["question"]).strip()
    while question and document.lower().endswith(question.lower()):
        document = document[: -len(question)].strip()
    return document.strip("."), f". {question}"


def _split_question(text: str) -> tuple[str, str]:
    """(document, question): a prompt split before its last 'Question:', if it has one."""
    document, separator, question = text.rpartition("\nQuestion:")
    return (document, separator + question) if separator else (text, "")


def _answer_parts(answers: Sequence[Any]) -> list[list[str]]:
    """Answers as lists of non-empty parts; a string is an answer of one part."""
    alternatives = list[list[str]]()
    for answer in answers:
        parts = [answer] if isinstance(answer, str) else list(answer)
        if parts:
            alternatives.append([part.strip() for part in parts if part.strip()])
    return alternatives


def _evenly_spread(numbers: list[int], count: int) -> list[int]:
    return [numbers[i * len(numbers) // count] for i in range(count)]


def _records_prompt(records: list[list[str]], key: str, kept: set[int]) -> str:
    """Ask for the value of `key` in a JSON object of the `records` in `kept`."""
    lines = [f'"{records[n][0]}": "{records[n][1]}"' for n in sorted(kept)]
    return (
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        "JSON data:\n{" + ",\n ".join(lines) + "}\n\n"
        f'Key: "{key}"\nCorresponding value:'
    )
