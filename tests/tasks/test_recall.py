"""Multi-query associative recall, and what is known about tasks by their names."""

import pytest
import torch

from statetrim.errors import StatetrimError
from statetrim.tasks import chance_of, check_names, group_of, recall, setting_text
from statetrim.tasks.unit import NATS, PERPLEXITY, SHARE


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


@pytest.mark.parametrize("names", [[], [""], ["a b"], ["../x"], ["*"], [3]])
def test_what_cannot_be_a_name_is_refused(names: list[str]) -> None:
    with pytest.raises(StatetrimError, match="no task has the name"):
        check_names(names)


def test_groups_and_chance_by_name() -> None:
    check_names(["text", "gsm8k", "mmlu_pro-v2.1"])
    assert [group_of(name, SHARE) for name in ("mqar", "niah_single_1", "gsm8k", "fda2")] == [
        "recall", "recall", "accuracy", "accuracy",
    ]  # fmt: skip
    assert group_of("wikitext", PERPLEXITY) == group_of("text", PERPLEXITY) == "perplexity"
    assert group_of("text", NATS) == "agreement"
    assert chance_of("mqar", "pairs_16_in_512") == 1 / 16 and chance_of("mqar", "accuracy") == 0
    assert chance_of("gsm8k", "pairs_16") is None
