"""Generated sequences: their content, and that none of them is ever evaluated."""

import pytest
import torch
from torch import Tensor

import statetrim as st
from statetrim.evaluation.runner import LONG_MQAR
from statetrim.evaluation.samples import DEFAULT_SAMPLES
from statetrim.tasks import recall
from statetrim.tasks.generated import (
    derive_seed,
    plain_tokens,
    recall_sequences,
)


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


def test_no_generated_sequence_is_ever_tested() -> None:
    """Twenty seeds: no row, and no first half of one (the pairs), equals an evaluated one."""
    tested = [recall.associations(4096, pairs, DEFAULT_SAMPLES)[0] for pairs in recall.PAIR_COUNTS]
    tested.append(recall.associations(4096, rows=DEFAULT_SAMPLES, **LONG_MQAR)[0])
    seen = halves(*tested)
    for seed in range(20):
        tokens = 63 * 4 * DEFAULT_SAMPLES
        generated = halves(recall_sequences(WordTokenizer(), tokens, seed=seed).ids)
        assert len(generated) == DEFAULT_SAMPLES and not generated & seen
        seen |= generated


@pytest.mark.parametrize("use", ["calibration", "recovery", "held out"])
def test_no_generated_sequence_is_tested_on_the_same_tokens(use: str) -> None:
    """Also if the evaluated vocabulary is the plain tokens, so that only seeds differ."""
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
    monkeypatch.setattr("statetrim.tasks.generated.MAX_ROWS_AT_ONCE", 8)
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
