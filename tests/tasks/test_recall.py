"""Multi-query associative recall, generated sequences, none of which is ever evaluated, and what is
known about tasks by their names."""

import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers.cases import load_cases
from statetrim.errors import StatetrimError
from statetrim.tasks import chance_of, check_names, group_of, recall, setting_text
from statetrim.tasks.recall import derive_seed, plain_tokens, recall_sequences
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


@pytest.mark.parametrize(("task", "metric", "text"), load_cases("settings"))
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


class WordTokenizer:
    """The part of a tokenizer that the generators use; token 0 is special."""

    def __init__(self, count: int = 4096, *added: int) -> None:
        self.count, self.all_special_ids = count, [0]
        self.added_tokens_decoder = dict.fromkeys((0, *added), "<added>")

    def __len__(self) -> int:
        return self.count


def halves(*sequences: Tensor) -> set[tuple[int, ...]]:
    """The first half of every row."""
    return {tuple(row[: len(row) // 2]) for ids in sequences for row in ids.tolist()}


def test_recall_asks_for_what_stood_in_the_first_half() -> None:
    generated = recall_sequences(WordTokenizer(), 8000, seed=3)
    assert generated.ids.shape == (31, 252) and generated.answer_positions is not None
    assert generated.answer_positions.tolist() == list(range(126, 252, 2))
    for row in generated.ids.tolist():
        pairs = dict(zip(row[:126:2], row[1:126:2], strict=True))
        assert len(pairs) == 63
        assert all(
            row[position + 1] == pairs[row[position]]
            for position in generated.answer_positions.tolist()
        )


@pytest.mark.parametrize("use", ["calibration", "recovery", "held out"])
def test_no_generated_sequence_is_ever_tested(use: str) -> None:
    """Nor its first half, the pairs, even if the evaluated vocabulary is the plain tokens, so that
    only seeds differ."""
    plain = plain_tokens(WordTokenizer())
    seen = halves(*(plain[recall.associations(len(plain), 63, 256, seed=s)[0]] for s in range(20)))
    for seed in range(20):
        generated = halves(recall_sequences(WordTokenizer(), 63 * 4 * 256, seed, use=use).ids)
        assert len(generated) == 256 and not generated & seen
        seen |= generated


def test_seeds_are_told_apart_by_the_generator() -> None:
    """torch uses 32 bits of a seed."""
    first = torch.Generator().manual_seed(7)
    assert torch.rand(4, generator=torch.Generator().manual_seed(2**32 + 7)).equal(
        torch.rand(4, generator=first)
    )
    seeds = {
        derive_seed(f"{use} {n} 0") for use in ("calibration", "recovery") for n in range(1000)
    }
    assert len(seeds) == 2000 and min(seeds) >= 2**31 and max(seeds) < 2**32


def test_more_rows_than_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recall_sequences(WordTokenizer(), 63 * 4 * 8).ids
    monkeypatch.setattr("statetrim.tasks.recall.MAX_ROWS_AT_ONCE", 8)
    parts = recall_sequences(WordTokenizer(), 63 * 4 * 20).ids
    assert parts[:8].equal(whole) and len(halves(parts)) == 20


def test_generated_tokens_are_plain_ones() -> None:
    words = WordTokenizer(4096, 4095)
    assert plain_tokens(words).tolist() == list(range(1, 4095))
    generated = recall_sequences(words, 4096)
    assert int(generated.ids.min()) >= 1 and int(generated.ids.max()) <= 4094


@pytest.mark.parametrize("words", [3, 7, 64])
def test_small_vocabularies_make_shorter_sequences_or_none(words: int) -> None:
    if words == 3:
        with pytest.raises(st.StatetrimError, match="too few"):
            recall_sequences(WordTokenizer(words), 4096)
        return
    generated = recall_sequences(WordTokenizer(words), 4096)
    assert generated.ids.shape[1] == 4 * ((words - 1) // 4)
    with pytest.raises(st.StatetrimError, match="do not fill"):
        recall_sequences(WordTokenizer(words), 2)
