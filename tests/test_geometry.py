"""Index arithmetic, on tables small enough to check by hand."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import statetrim as st
from statetrim.geometry import (
    kept_masks,
    resolve_keep,
    resolve_square,
    row_indices,
)


def test_rows_of_packed_and_interleaved_heads() -> None:
    assert row_indices(2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert row_indices(2, 3, start=4, stride=10).tolist() == [[4, 5, 6], [14, 15, 16]]


def test_survivors_of_a_fused_tensor() -> None:
    """Two heads of [ q q q | k k k | v ]: drop channel 1 of head 0 and channel 2 of head 1."""
    claims = [
        st.ChannelRows("w", "q_proj", row_indices(2, 3, stride=7), 14),
        st.ChannelRows("w", "k_proj", row_indices(2, 3, start=3, stride=7), 14),
    ]
    masks = kept_masks(claims, {"key": torch.tensor([[0, 2], [0, 1]])})
    assert masks.keys() == {0}
    assert [i for i, stays in enumerate(masks[0]) if not stays] == [1, 4, 9, 12]


def test_survivors_along_both_axes_and_dimensions() -> None:
    """A value axis needs no other code: an output projection loses columns."""
    claims = [
        st.ChannelRows("o", "value", row_indices(2, 2), 4, axis="value", dim=1),
        st.ChannelRows("o", "q_proj", row_indices(1, 3), 3),
    ]
    kept = {"key": torch.tensor([[0, 2]]), "value": torch.tensor([[1], [0]])}
    masks = kept_masks(claims, kept)
    assert masks[0].tolist() == [True, False, True]
    assert masks[1].tolist() == [False, True, True, False]
    assert kept_masks(claims, {"key": kept["key"]}).keys() == {0}, "values are not cut unasked"


@pytest.mark.parametrize(
    ("requested", "channels", "keep"),
    [
        (64, 128, 64),
        ("64", 128, 64),
        (0.5, 128, 64),
        ("0.5", 128, 64),
        ("1/2", 128, 64),
        (0.1, 100, 16),  # exactly 10, then up to a tile of 16
        (0.1, 20, 2),
        (0.3, 128, 48),  # 38.4 -> 39 -> 48
        (0.9, 10, 9),  # float arithmetic would say 9.000000000000002
        ("5e-1", 128, 64),
        (33, 128, 33),
    ],
)
def test_keep_is_a_count_or_a_fraction(requested: object, channels: int, keep: int) -> None:
    assert resolve_keep(requested, channels) == keep  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "requested",
    [0, -1, 128, 129, 1.0, 0.0, 1.5, "nan", "inf", "", "a", "1e999", "-0.5", "0.999", "1/0"],
)
def test_keep_that_makes_no_sense_is_refused(requested: object) -> None:
    with pytest.raises(st.StatetrimError):
        resolve_keep(requested, 128)  # type: ignore[arg-type]


@given(some.integers(1, 63), some.integers(1, 1000), some.integers(1, 1000))
def test_a_fraction_is_exact_on_small_heads(
    channels: int, numerator: int, denominator: int
) -> None:
    fraction = Fraction(numerator, denominator)
    expected = -(-fraction.numerator * channels // fraction.denominator)
    if fraction > 1 or expected == channels:
        with pytest.raises(st.StatetrimError):
            resolve_keep(f"{numerator}/{denominator}", channels)
    else:
        assert resolve_keep(f"{numerator}/{denominator}", channels) == expected


def state(keys: int, values: int) -> st.Geometry:
    return st.Geometry((0,), 2, 4, keys, values)


def test_a_square_cuts_the_axes_that_are_wider() -> None:
    assert resolve_square(64, state(128, 128)) == (64, 64)
    assert resolve_square("0.5", state(128, 128)) == (64, 64)
    assert resolve_square("96", state(96, 192)) == (None, 96)
    assert resolve_square("96", state(192, 96)) == (96, None)
    assert resolve_square(48, state(96, 192)) == (48, 48)
    assert resolve_square(0.5, state(96, 192)) == (48, 48), "a fraction of the narrower axis"
    for nonsense in (128, 129, 0, "x", 1.0):
        with pytest.raises(st.StatetrimError):
            resolve_square(nonsense, state(128, 128))
    with pytest.raises(st.StatetrimError, match="cannot keep 128"):
        resolve_square(128, state(96, 192))


def test_a_shared_norm_only_loses_length() -> None:
    claim = st.ChannelRows("n", "shared_norm", row_indices(1, 4), 4, axis="value")
    kept = {"value": torch.tensor([[2, 3], [0, 1], [1, 3]])}
    assert kept_masks([claim], kept)[0].tolist() == [True, True, False, False]
