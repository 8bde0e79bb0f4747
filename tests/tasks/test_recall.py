"""Recall tasks: for each of the six a row, its prompt, and right and wrong answers.

The tokenizer splits into words, so that every cut can be checked by hand.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrim.errors import StatetrimError
from statetrim.tasks import (
    TASKS,
    find_tasks,
    prepare_rows,
    recall,
    score,
    setting_text,
    wikitext_pages,
)


def words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


# task, row, prompt, right continuations, wrong continuations
BY_HAND: list[tuple[str, dict[str, Any], str, list[str], list[str]]] = [
    ("fda", {"key": "type of test", "value": "Enzyme Assay",
             "text": "K1. Test: enzyme assay.\nType of test:"},
     "K1. Test: enzyme assay. Type of test:",
     [" enzyme assay", "an ENZYME ASSAY."], [" enzyme", "assay enzyme", ""]),
    ("swde", {"key": "director", "value": "Ang Lee",
              "text": "Film page. Director: Ang Lee\nSummary of information above...\ndirector:"},
     "Film page. Director: Ang Lee. Director:",
     ["ang lee (born 1954)"], ["Lee, Ang"]),
    ("squad", {"text": "Background: It is older by 23 years.\nQuestion: By how much?\nAnswer:",
               "value": "23 years", "answers": ["23 years", "23"]},
     "Background: It is older by 23 years.\nQuestion: By how much?\nAnswer:",
     # contains: a longer number counts, as in the suite
     [" 23 years", " about 23", "2300"], [" twenty-three", " 32"]),
    ("nq", {"context": "Röntgen got it in 1901. Who got it?", "question": "Who got it?",
            "answers": ["Röntgen"]},
     "Röntgen got it in 1901. Who got it?",
     [" RÖNTGEN", "Wilhelm Röntgen"], [" Rontgen"]),
    ("drop", {"text": "Passage: A red fox and a blue jay.\nQuestion: Which colours?\nAnswer:",
              "answers": [["red", "blue"], ["crimson"]]},
     "Passage: A red fox and a blue jay.\nQuestion: Which colours?\nAnswer:",
     [" Blue and red", "crimson"], [" red", " blue"]),
    ("triviaqa", {"context": "[DOC] [TLE] Capitals [PAR] Paris is one.",
                  "question": "The capital of France is", "answers": ["Paris", "City of Light"]},
     "Capitals  Paris is one. The capital of France is",
     [" paris", " the city of light"], [" Lyon"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "row", "prompt", "right", "wrong"), BY_HAND, ids=[case[0] for case in BY_HAND]
)
def test_the_six_tasks_by_hand(
    task: str, row: dict[str, Any], prompt: str, right: list[str], wrong: list[str]
) -> None:
    make = TASKS[task].question
    assert make is not None
    question = make(row)
    assert recall.build_prompt(question, words) == prompt
    prepared = {"prompt": prompt, "answers": question.answers}
    for text in right:
        assert score(prepared, [text]) == {"contains": 1}, text
    for text in wrong:
        assert score(prepared, [text]) == {"contains": 0}, text


def test_an_empty_answer_is_in_no_text() -> None:
    assert not recall.contains("anything", [[""], []])


NUMBERS = " ".join(f"w{n}" for n in range(100))


@pytest.mark.parametrize(
    ("anchors", "most", "first", "last"),
    [
        ([], 10, 0, 9),  # no anchor: the beginning (DROP, TriviaQA)
        (["w50"], 10, 45, 54),  # five before, the rest from it on
        (["w51"], 11, 46, 56),
        (["w2"], 10, 0, 9),  # near the beginning the window starts there
        (["w98"], 10, 93, 99),  # near the end it is shorter
        (["w70 w71", "w50"], 10, 45, 54),  # the anchor that comes first
        (["absent"], 10, 0, 9),
        (["W50"], 200, 0, 99),  # room for all
    ],
)
def test_the_window_by_hand(anchors: list[str], most: int, first: int, last: int) -> None:
    expected = " ".join(f"w{n}" for n in range(first, last + 1))
    assert recall.cut_window(NUMBERS, anchors, words, most) == expected


@pytest.mark.parametrize("task", ["fda", "swde", "squad", "nq"])
def test_a_long_document_is_cut_around_the_answer(task: str) -> None:
    filler = " ".join(["word"] * 3000)
    text = f"{filler} Colour: Teal {filler}"
    row = {
        "key": "shade",
        "value": "Teal",
        "text": f"{text}\nQuestion: shade:",
        "answers": ["Teal"],
    }
    question = TASKS[task].question(row)  # type: ignore[misc]
    prompt = recall.build_prompt(question, words)
    assert 1996 <= len(words(prompt)) <= recall.CONTEXT_TOKENS - recall.ANSWER_TOKENS
    assert "Colour: Teal" in prompt and prompt.endswith(question.question)
    before = prompt.index("Teal")
    assert abs(len(words(prompt[:before])) - 998) <= 3, "half of the window stands before it"


@pytest.mark.parametrize("task", ["drop", "triviaqa"])
def test_a_long_document_without_anchor_keeps_its_beginning(task: str) -> None:
    row = {"context": "start " + "word " * 3000 + "Teal", "question": "Which?", "answers": ["Teal"]}
    prompt = recall.build_prompt(TASKS[task].question(row), words)  # type: ignore[misc]
    assert prompt.startswith("start word") and prompt.endswith("word. Which?")
    assert len(words(prompt)) <= 1998


def test_key_value_retrieval_keeps_the_pair_asked_for() -> None:
    records = [[f"key{n}", f"value{n}"] for n in range(500)]
    row = {"ordered_kv_records": records, "key": "key321", "value": "value321"}
    for most in (60, 200, 5000):
        prompt = recall.key_value_prompt(row, words, most)
        kept = re.findall(r'"key(\d+)": "value(\d+)"', prompt)
        assert ("321", "321") in kept and len(words(prompt)) <= most
        assert kept == sorted(kept, key=lambda pair: int(pair[0])), "in their order"
        assert prompt.endswith('Key: "key321"\nCorresponding value:')
    assert len(kept) == 500
    few = recall.key_value_prompt(row, words, 60)
    assert len(words(few)) > 56, "as many as fit"


def test_associations_ask_for_what_was_stored() -> None:
    ids, positions = recall.associations(4096, pairs=5, rows=3, seed=7)
    assert ids.shape == (3, 20) and positions.tolist() == [10, 12, 14, 16, 18]
    for row in ids.tolist():
        stored = dict(zip(row[0:10:2], row[1:10:2], strict=True))
        assert len(stored) == 5 and all(1024 <= key < 2048 for key in stored)
        assert all(2048 <= value < 3072 for value in stored.values())
        assert sorted(row[10::2]) == sorted(stored), "every key is asked for once"
        assert all(stored[row[position]] == row[position + 1] for position in positions.tolist())
    far, later_positions = recall.associations(4096, pairs=5, rows=3, length=64, seed=7)
    assert far.shape == (3, 64) and later_positions.tolist() == [54, 56, 58, 60, 62]
    assert torch.equal(far[:, :10], ids[:, :10]) and bool((far[:, 10:54] >= 3072).all())


def test_recalled_counts_values_ranked_first() -> None:
    ids, positions = recall.associations(64, pairs=4, rows=2)
    logits = torch.zeros(2, 4, 64)
    logits.scatter_(2, ids[:, positions + 1].unsqueeze(-1), 1.0)
    logits[1, 0, 3] = 2.0
    assert recall.recalled_share(ids, positions, logits).tolist() == [1.0, 0.75]


def test_wikitext_is_split_at_titles(tmp_path: Path) -> None:
    path = tmp_path / "wiki.raw"
    path.write_text(" \n = One = \n \n text \n = = Part = = \n more \n = Two = \n \n end \n")
    documents = list(wikitext_pages(path))
    assert documents == [" = One = \n \n text \n = = Part = = \n more ", " = Two = \n \n end \n"]


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "no key"}\n')
    with pytest.raises(StatetrimError, match=r"not what fda expects: KeyError\('key'\)"):
        prepare_rows(TASKS["fda"], path, words, None)
    path.write_text("[]\n")
    with pytest.raises(StatetrimError, match="line 1, is not a JSON object"):
        prepare_rows(TASKS["fda"], path, words, None)
    with pytest.raises(StatetrimError, match="no task has the name 'fdaa'"):
        find_tasks(["fdaa"])
    with pytest.raises(StatetrimError, match=r"reads fda/\*.jsonl below .* no file"):
        TASKS["fda"].find_file(tmp_path)
    assert [task.name for task in find_tasks(["recall", "fda", "mqar"])][-1] == "mqar"


@pytest.mark.parametrize(
    ("task", "metric", "text"),
    [
        ("mqar", "pairs_127", "127 pairs"),
        ("mqar", "pairs_16_in_512", "16 pairs in 512 tokens"),
        ("mqar", "accuracy", "accuracy"),
        ("mqar", "pairs_many", "pairs_many"),
        ("text", "pairs_4", "pairs_4"),
        ("unknown", "pairs_4", "pairs_4"),
    ],
)
def test_settings_are_named_in_words(task: str, metric: str, text: str) -> None:
    assert setting_text(task, metric) == text
