"""Recall: what an answer is, how a document is cut, and multi-query associative recall.

The six tasks of the paper follow its recall suite (prefix-linear-attention): a greedy continuation
of at most 48 tokens, right when it contains the answer in any case, and a document cut to 2K tokens
around the answer. Pure functions; a tokenizer comes in as `spans`, where each token stands.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # tasks can be named before torch is imported
    from torch import Tensor

CONTEXT_TOKENS = 2048
ANSWER_TOKENS = 50  # of them kept free for the answer
PAIR_COUNTS = (4, 8, 16, 32, 63, 127)

Spans = Callable[[str], list[tuple[int, int]]]
"""A text's tokens as (first character, character after the last)."""


@dataclass(frozen=True)
class Question:
    """A document, what is asked of it, and what counts as an answer."""

    document: str
    question: str  # what stands after the document, separator included
    answers: list[list[str]]  # right when every part of any one of them is found
    anchors: list[str]  # the cut keeps the first of these in view; none: it keeps the beginning


def contains(prediction: str, answers: Sequence[Sequence[str]]) -> bool:
    """Whether some answer stands in the prediction with all its parts, in any case."""
    text = prediction.lower()
    return any(
        bool(parts) and all(part and part.lower() in text for part in parts) for parts in answers
    )


def build_prompt(
    question: Question, spans: Spans, max_tokens: int = CONTEXT_TOKENS - ANSWER_TOKENS
) -> str:
    """Document and question in at most `most` tokens: the document is cut, the question never."""
    room = max_tokens - len(spans(question.question))
    document = cut_window(question.document, question.anchors, spans, max(room, 0))
    # Two texts may take a token more together than apart.
    while document and len(spans(document + question.question)) > max_tokens:
        room -= 1
        document = cut_window(question.document, question.anchors, spans, room)
    return document + question.question


def cut_window(document: str, anchors: Sequence[str], spans: Spans, max_tokens: int) -> str:
    """At most `most` tokens of a document: half of them before the first anchor, or its beginning.

    Near the end of the document the window is shorter, as in the suite.
    """
    tokens = spans(document)
    if len(tokens) <= max_tokens:
        return document
    if max_tokens <= 0:
        return ""
    positions = [document.lower().find(anchor.lower()) for anchor in anchors if anchor]
    anchor_starts = [place for place in positions if place >= 0]
    centre = sum(end <= min(anchor_starts) for _, end in tokens) if anchor_starts else 0
    start = max(0, centre - max_tokens // 2)
    stop = min(len(tokens), start + max_tokens)
    return document[tokens[start][0] : tokens[stop - 1][1]]


def keyed_question(row: dict[str, Any]) -> Question:
    """FDA and SWDE: `text` ends in the key that is asked for; the summary of SWDE goes first."""
    key, value = str(row["key"]).strip(), str(row["value"]).strip()
    text = str(row["text"]).partition("Summary of information above...")[0].strip()
    while text.lower().endswith(f"{key}:".lower()):
        text = text[: -len(key) - 1].strip()
    question = f". {key[:1].upper()}{key[1:]}:"
    return Question(text.strip("."), question, [[value]], [key, value])


def squad_question(row: dict[str, Any]) -> Question:
    """SQuAD: `text` is the whole prompt; any of the answers will do."""
    document, question = _split_question(str(row["text"]).strip())
    answers = row.get("answers") or [row["value"]]
    return Question(document, question, _answer_parts(answers), [str(row["value"]).strip()])


def natural_questions_question(row: dict[str, Any]) -> Question:
    """NQ: a passage and a question, cut around the first answer."""
    document, question = _document_and_question(row)
    answers = _answer_parts(row["answers"])
    return Question(document, question, answers, answers[0][:1])


def drop_question(row: dict[str, Any]) -> Question:
    """DROP: an answer may have several parts; long passages keep their beginning."""
    document, question = _document_and_question(row)
    return Question(document, question, _answer_parts(row["answers"]), [])


def trivia_question(row: dict[str, Any]) -> Question:
    """TriviaQA: marks of the source are taken out; long passages keep their beginning."""
    document, question = _document_and_question(row)
    document = re.sub(r"\[(PAR|DOC|TLE)\]", "", document).strip()
    return Question(document, question, _answer_parts(row["answers"]), [])


def key_value_prompt(
    row: dict[str, Any], spans: Spans, max_tokens: int = CONTEXT_TOKENS - ANSWER_TOKENS
) -> str:
    """Key-value retrieval: the pair asked for among as many others as fit, in their order."""
    records: list[list[str]] = row["ordered_kv_records"]
    index = [key for key, _ in records].index(row["key"])
    others = [number for number in range(len(records)) if number != index]
    fits, too_many = 0, len(others) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        text = _records_prompt(records, row["key"], {index, *_evenly_spread(others, middle)})
        fits, too_many = (middle, too_many) if len(spans(text)) <= max_tokens else (fits, middle)
    return _records_prompt(records, row["key"], {index, *_evenly_spread(others, fits)})


def associations(
    vocabulary: int, pairs: int, rows: int, *, length: int = 0, seed: int = 0
) -> "tuple[Tensor, Tensor]":
    """Multi-query associative recall: token ids [rows, time] and the asked positions [pairs].

    Distinct keys of the second quarter of the vocabulary and values of the third, `k v k v ...`
    once, then every pair again in another order; what follows each key of the second half is asked
    for. `length` above 4 * pairs puts tokens of the last quarter between the halves.
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
    """Share of each row's values ranked first, float64 [rows]; logits [rows, pairs, vocabulary]."""
    return (logits.argmax(-1) == ids[:, positions + 1].to(logits.device)).double().mean(-1).cpu()


def _document_and_question(row: dict[str, Any]) -> tuple[str, str]:
    if "text" in row:
        return _split_question(str(row["text"]).strip())
    document, question = str(row["context"]).strip(), str(row["question"]).strip()
    while question and document.lower().endswith(question.lower()):
        document = document[: -len(question)].strip()
    return document.strip("."), f". {question}"


def _split_question(text: str) -> tuple[str, str]:
    """A prompt before and from its last 'Question:'; one without it is all document."""
    document, separator, question = text.rpartition("\nQuestion:")
    return (document, separator + question) if separator else (text, "")


def _answer_parts(answers: Sequence[Any]) -> list[list[str]]:
    """Answers as lists of parts; a plain string is an answer of one part."""
    parts = [[answer] if isinstance(answer, str) else list(answer) for answer in answers]
    return [[part.strip() for part in answer if part.strip()] for answer in parts if answer]


def _evenly_spread(numbers: list[int], count: int) -> list[int]:
    """`count` of the numbers, evenly spread."""
    return [numbers[i * len(numbers) // count] for i in range(count)]


def _records_prompt(records: list[list[str]], key: str, kept: set[int]) -> str:
    lines = [f'"{records[n][0]}": "{records[n][1]}"' for n in sorted(kept)]
    return (
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        "JSON data:\n{" + ",\n ".join(lines) + "}\n\n"
        f'Key: "{key}"\nCorresponding value:'
    )
