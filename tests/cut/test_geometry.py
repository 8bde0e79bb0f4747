"""Index arithmetic, on tables small enough to check by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import statetrim as st
from statetrim.cut.geometry import Geometry, allowed_head_counts, resolve_width
from statetrim.cut.request import Side
from statetrim.cut.rows import kept_masks, row_indices


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
    ("requested", "channels", "width"),
    [
        (33, 128, 33),
        (128, 128, 128),
        (Fraction(1, 2), 128, 64),
        (Fraction(1, 10), 100, 16),  # exactly 10, then up to a tile of 16
        (Fraction(1, 3), 64, 32),
        (Fraction(3, 10), 128, 48),  # 38.4 -> 39 -> 48
        (Fraction(9, 10), 72, 72),  # a tile more would be more than all
        (Fraction(1), 72, 72),
    ],
)
def test_a_width_is_a_count_or_a_part(requested: Side, channels: int, width: int) -> None:
    assert resolve_width(requested, channels) == width


def test_widths_by_layer_are_within_those_of_the_heads() -> None:
    by_layer = Geometry((0, 3), 2, 4, 8, 6, widths=((8, 4), (2, 6)))
    by_layer.validate()
    with pytest.raises(ValueError, match="widths are other than"):
        replace(by_layer, head_k_dim=9).validate()


@pytest.mark.parametrize("requested", [0, 129, 10**6])
def test_a_width_that_an_axis_lacks_is_refused(requested: int) -> None:
    with pytest.raises(st.StatetrimError, match=f"{requested} of 128"):
        resolve_width(requested, 128)


@given(some.integers(1, 63), some.integers(1, 1000), some.integers(1, 1000))
def test_a_part_is_exact_on_small_heads(channels: int, numerator: int, denominator: int) -> None:
    part = min(Fraction(numerator, denominator), Fraction(1))
    assert resolve_width(part, channels) == -(-part.numerator * channels // part.denominator)


def test_a_shared_norm_only_loses_length() -> None:
    claim = st.ChannelRows("n", "shared_norm", row_indices(1, 4), 4, axis="value")
    kept = {"value": torch.tensor([[2, 3], [0, 1], [1, 3]])}
    assert kept_masks([claim], kept)[0].tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    "field, least, largest",
    [
        ("conv_key_heads", 0, 16_777_216), ("conv_value_heads", 0, 16_777_216),
        ("conv_width", 0, 1024), ("num_v_heads", 1, 4096), ("head_k_dim", 1, 65_536),
        ("head_v_dim", 1, 65_536), ("shared_values", 1, 4096),
    ],
)  # fmt: skip
def test_numbers_of_untrusted_files_have_a_range(field: str, least: int, largest: int) -> None:
    geometry = Geometry((0,), 1, 1, 8, 8)
    for allowed in (least, largest):
        replace(geometry, **{field: allowed}).validate()
    for refused in (least - 1, largest + 1):
        with pytest.raises(ValueError, match=field):
            replace(geometry, **{field: refused}).validate()


@pytest.mark.parametrize("layers", [(), (-1, 0), (0, 0), (1, 0)])
def test_layers_increase_from_the_first(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="increase from 0"):
        Geometry(layers, 1, 1, 8, 8).validate()


def test_a_convolution_is_over_the_heads_that_are_named() -> None:
    geometry = Geometry((0, 2), 1, 1, 8, 4, conv_width=3)
    assert geometry.conv_numel == 0
    assert replace(geometry, conv_key_heads=2, conv_value_heads=1).conv_numel == 2 * 3 * (16 + 4)


def test_numbers_of_heads_that_a_model_can_keep() -> None:
    counts = {}
    for heads in ((1, 3), (2, 4), (4, 4)):
        counts[heads] = allowed_head_counts(Geometry((0,), *heads, 8, 8))
    assert counts == {(1, 3): [1, 2], (2, 4): [2], (4, 4): [1, 2, 3]}
