"""Quantised weights: read as their libraries read them, and cut exactly where that is possible.

Config and tensors must agree on one description.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers.cases import load_cases
from helpers.quantized import FLOAT8, FORMATS, INT8, Format, find, in_memory
from statetrim.storage.quantized.find import QuantizedTensor
from statetrim.storage.quantized.read import ReadRows, StoredInMemory, dequantize
from statetrim.storage.quantized.rewrite import (
    check_written,
    collect_all,
    cut_quantized,
    edited_rows,
    is_exact,
    quantize_like,
)
from statetrim.storage.quantized.scheme import FP4, INT4, schemes_in
from statetrim.storage.safetensors_file import TensorEdit

ROWS, COLUMNS = 64, 96
KEPT_ROWS = torch.arange(ROWS) % 3 != 1
FEWER_ROWS = TensorEdit({0: KEPT_ROWS})
Case = tuple[Format, StoredInMemory, QuantizedTensor]


def with_changes(stored: StoredInMemory, changed: dict[str, Tensor]) -> StoredInMemory:
    return StoredInMemory({**stored.tensors, **changed})


def weight() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=FORMATS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    form = FORMATS[request.param]
    stored = in_memory(form.quantize(weight()))
    return form, stored, find(stored, form, tmp_path)


def rows_of(value: Tensor) -> ReadRows:
    return lambda start, stop: value[start:stop]


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def test_removed_rows_leave_the_others_as_they_are(case: Case) -> None:
    """Bit for bit what quantising the cut weight gives, where a scale belongs to one row."""
    form, stored, tensor = case
    cut = collect_all(cut_quantized(tensor, FEWER_ROWS, stored), stored)
    small = tensor.resized(int(KEPT_ROWS.sum()), COLUMNS)
    if tensor.block[0] == 1:
        assert is_exact(tensor, FEWER_ROWS)
        quantised = form.quantize(weight()[KEPT_ROWS])
        for name in cut if tensor.global_scale is None else ():
            assert as_bytes(cut[name]) == as_bytes(quantised[name.removeprefix("a.")])
    values = dequantize(small, with_changes(stored, cut))
    kept = dequantize(tensor, stored)[KEPT_ROWS]
    if form.exact or tensor.block[0] == 1:
        assert torch.equal(values, kept)
    else:
        assert 0 < float((values - kept).norm() / kept.norm()) < 0.04


@pytest.mark.parametrize("limit", [1, 4 * 96 * 5, 4 * 96 * 20])
def test_rows_in_memory_at_a_time_change_nothing(
    case: Case, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row, five, or a block and a part of one."""
    _, stored, tensor = case
    change = replace(FEWER_ROWS, column_factors=torch.rand(COLUMNS, dtype=torch.float64))

    def written() -> tuple[dict[str, Tensor], float]:
        cut = collect_all(cut_quantized(tensor, change, stored), stored)
        small = tensor.resized(int(KEPT_ROWS.sum()), COLUMNS)
        rows = edited_rows(tensor, change, stored)
        return cut, check_written(small, rows, with_changes(stored, cut), exact=False)

    expected, expected_error = written()
    monkeypatch.setattr("statetrim.storage.quantized.read.BLOCK_BYTES", limit)
    actual, error = written()
    assert {name: as_bytes(x) for name, x in actual.items()} == {
        name: as_bytes(x) for name, x in expected.items()
    }
    assert error == pytest.approx(expected_error, rel=1e-9)


def test_whole_groups_of_columns_are_removed_exactly(case: Case) -> None:
    """As when a head goes: codes and scales of the others are copied."""
    _, stored, tensor = case
    mask = torch.arange(COLUMNS) >= 32
    cut = collect_all(cut_quantized(tensor, TensorEdit({1: mask}), stored), stored)
    small = tensor.resized(ROWS, COLUMNS - 32)
    values = dequantize(small, with_changes(stored, cut))
    assert torch.equal(values, dequantize(tensor, stored)[:, mask])


def test_a_replaced_weight_is_rounded_once(case: Case) -> None:
    _, stored, tensor = case
    value = weight().flip(0)
    rounded, parts = quantize_like(tensor, value, stored)
    again = dequantize(tensor, with_changes(stored, parts))
    assert torch.equal(rounded, again)
    assert float((rounded - value).norm() / value.norm()) < 0.15


def test_fp4_rounds_to_the_nearest_even() -> None:
    values = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, 5.1, 7.0, 0.2])
    expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -0.0, 6.0, 6.0, 0.0]
    assert FP4.decode(FP4.encode(values)).tolist() == expected


def test_scales_that_are_not_finite_are_refused(case: Case) -> None:
    _, stored, tensor = case
    scales = stored.tensors[tensor.scales.name]
    spoiled = torch.full_like(scales.float(), float("nan")).to(scales.dtype)
    broken = with_changes(stored, {tensor.scales.name: spoiled})
    with pytest.raises(st.StatetrimError, match="NaN or infinity"):
        dequantize(tensor, broken)


def test_a_block_is_no_larger_than_its_weight(tmp_path: Path) -> None:
    """A config may name blocks of 4096 x 4096: memory for them is not allocated."""
    config = {"quant_method": "fp8", "weight_block_size": [4096, 4096]}
    codes = weight().to(torch.float8_e4m3fn)
    stored = in_memory({"weight": codes, "weight_scale_inv": torch.ones(1, 1)})
    form = Format(lambda value: {}, config, exact=True)
    assert find(stored, form, tmp_path).block == (ROWS, COLUMNS)


@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_zeros_stay_zeros(case: Case, scale: float) -> None:
    """Whole blocks, rows and weights of them; their scales stay positive and finite."""
    _, stored, tensor = case
    value = weight() * scale
    value[:16, :16] = 0
    value[3] = 0
    for zeros in (value, torch.zeros_like(value)):
        rounded, parts = quantize_like(tensor, zeros, stored)
        assert bool((rounded[zeros == 0] == 0).all())
        scales = parts[tensor.scales.name].float()
        assert bool((scales > 0).all()) and bool(scales.isfinite().all())
        check_written(tensor, rows_of(zeros), with_changes(stored, parts), exact=False)


def test_a_small_block_keeps_the_smallest_scale(tmp_path: Path) -> None:
    """Worked by hand: the largest value is 6 x 448, so that the global scale is 1. Another block's
    largest is 2.4 times the smallest scale, 2^-9, and its values round to halves of that scale."""
    form, value = FORMATS["nvfp4"], torch.zeros(ROWS, COLUMNS)
    stored = in_memory(form.quantize(weight()))
    value[0, 0] = 6 * 448
    value[1, :4] = torch.tensor([2.4, 1.1, -0.6, 0.2]) * 2**-9
    rounded, parts = quantize_like(find(stored, form, tmp_path), value, stored)
    assert parts["a.weight_global_scale"].tolist() == [1.0]
    assert float(parts["a.weight_scale"][1, 0]) == 2**-9
    assert (rounded[1, :4] * 2**9).tolist() == [2.0, 1.0, -0.5, 0.0]


def test_a_block_near_the_smallest_scale_is_within_what_the_format_costs(tmp_path: Path) -> None:
    """Worked by hand: 1.49 times the smallest scale is rounded to it, and 6 x 1.49 becomes 6."""
    form, value = FORMATS["nvfp4"], torch.zeros(ROWS, COLUMNS)
    stored = in_memory(form.quantize(weight()))
    tensor = find(stored, form, tmp_path)
    value[0, 0] = 6 * 448
    value[1, 0] = 6 * 1.49 * 2**-9
    rounded, parts = quantize_like(tensor, value, stored)
    assert float(rounded[1, 0]) == 6 * 2**-9
    written = with_changes(stored, parts)
    assert check_written(tensor, rows_of(value), written, exact=False) < 1e-5
    value[1, 0] *= 10
    with pytest.raises(st.StatetrimError, match="costs"):
        check_written(tensor, rows_of(value), written, exact=False)


def test_one_wrong_block_is_beyond_what_the_format_costs(case: Case) -> None:
    """A small one, which hardly changes the error of the weight."""
    _, stored, tensor = case
    value = weight()
    value[:16, :16] *= 0.01
    _, parts = quantize_like(tensor, value, stored)
    changed = parts[tensor.scales.name].float()
    changed.view(-1)[0] *= 1.5
    parts[tensor.scales.name] = changed.to(parts[tensor.scales.name].dtype)
    with pytest.raises(st.StatetrimError, match="costs"):
        check_written(tensor, rows_of(value), with_changes(stored, parts), exact=False)


def test_an_exact_copy_has_no_error(case: Case) -> None:
    _, stored, tensor = case
    values = dequantize(tensor, stored)
    assert check_written(tensor, rows_of(values), stored, exact=True) == 0
    values[5, 5] += 1e-4
    with pytest.raises(st.StatetrimError, match="costs"):
        check_written(tensor, rows_of(values), stored, exact=True)


def test_scales_out_of_the_range_of_their_dtype_are_refused(tmp_path: Path) -> None:
    """float16 has no number below 6e-8, and no global scale helps."""
    form = FORMATS["int8 by row"]
    stored = in_memory(form.quantize(weight().half()))
    tensor = find(stored, form, tmp_path)
    for factor, fits in ((1e-2, True), (1e-6, False), (1e8, False)):
        value = weight() * factor
        _, parts = quantize_like(tensor, value, stored)
        written = with_changes(stored, parts)
        if fits:
            assert check_written(tensor, rows_of(value), written, exact=False) < 0.01
        else:
            with pytest.raises(st.StatetrimError, match="costs"):
                check_written(tensor, rows_of(value), written, exact=False)


def with_weights(form: Format, **changes: Any) -> Format:
    """The format with another description of its weights in the config."""
    weights = form.config["config_groups"]["group_0"]["weights"] | changes
    return replace(form, config=form.config | {"config_groups": {"group_0": {"weights": weights}}})


@pytest.mark.parametrize(("name", "changes"), load_cases("quantised-configs"))
def test_a_config_that_its_tensors_do_not_fit_is_refused(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    stored = in_memory(FORMATS[name].quantize(weight()))
    with pytest.raises(st.StatetrimError, match=r"a\.weight.*fits no group"):
        find(stored, with_weights(FORMATS[name], **changes), tmp_path)


@pytest.mark.parametrize(
    ("described", "blocks"),
    [
        ({}, [(None, None), (1, None)]), ({"group_size": -1}, [(1, None)]),
        ({"group_size": 32}, [(1, 32)]), ({"strategy": "group", "group_size": 32}, [(1, 32)]),
        ({"strategy": "tensor"}, [(None, None)]), ({"strategy": "channel"}, [(1, None)]),
        ({"strategy": "block", "block_structure": [8, 16]}, [(8, 16)]), ({"strategy": "x"}, []),
    ],
)  # fmt: skip
def test_what_shares_a_scale(described: dict[str, Any], blocks: list[Any]) -> None:
    """By compressed-tensors' defaults; without a strategy, the group size decides."""
    config = {"quantization_config": {"config_groups": {"a": {"weights": INT8 | described}}}}
    assert [(x.rows, x.columns) for x in schemes_in(config)] == blocks


def test_groups_of_a_config_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    """Words of 8 codes or of 4, and a scale for each row: the headers fit both."""
    form = FORMATS["int4 by row"]
    groups = {"a": form.config["config_groups"]["group_0"]}
    groups["b"] = {"weights": INT8 | {"strategy": "channel"}}
    both = replace(form, config=form.config | {"config_groups": groups})
    with pytest.raises(st.StatetrimError, match="fits several groups"):
        find(in_memory(form.quantize(weight())), both, tmp_path)
    groups["b"] = {"weights": FLOAT8 | {"strategy": "channel"}}
    assert find(in_memory(form.quantize(weight())), both, tmp_path).element is INT4


REFUSED: list[tuple[str, dict[str, Tensor | None], dict[str, Any], str]] = [
    *(("fine-grained fp8", {"weight_scale_inv": torch.ones(shape)}, {}, r"a\.weight_scale_inv")
      for shape in ((3, 6), (4,), (64, 96), (0, 6))),
    *(("fine-grained fp8", {}, {"weight_block_size": block}, "block size")
      for block in ([0, 16], [16], "16x16", [16, True], [2**40, 16])),
    *(("nvfp4", {"weight_global_scale": torch.tensor([value])}, {}, r"a\.weight_global_scale")
      for value in (0.0, -1.0, math.nan, math.inf)),
    *(("w4a16", {}, with_weights(FORMATS["w4a16"], group_size=size).config, "group size")
      for size in (0, -2, "16", True, 2**40)),
    *(("w4a16", {"weight_shape": shape}, {}, "weight_shape")
      for shape in (None, torch.zeros(3).long(), torch.zeros(2).int())),
    ("int4 by row", {"weight_shape": torch.tensor([64, 92])}, {}, r"_shape.*92\].*96\]"),
    ("w4a16", {"weight": weight()}, {}, "both weight and weight_packed"),
    ("fp8 by row", {}, {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
]  # fmt: skip
"""A format; tensors (None: it is missing) and fields that do not fit its others; what is said."""


@pytest.mark.parametrize(("name", "tensors", "fields", "message"), REFUSED)
def test_what_does_not_fit_is_refused(
    name: str, tensors: dict[str, Any], fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    form = FORMATS[name]
    leaves = form.quantize(weight()) | tensors
    stored = in_memory({leaf: value for leaf, value in leaves.items() if value is not None})
    spoiled = replace(form, config=form.config | fields)
    with pytest.raises(st.StatetrimError, match=message):
        dequantize(find(stored, spoiled, tmp_path), stored)
