"""Config and tensors of a quantised weight must agree on one description; else it is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers.cases import load_cases
from helpers.quantized import FLOAT8, FORMATS, INT8, Format, find, in_memory
from statetrim.storage.quantized.element import INT4
from statetrim.storage.quantized.read import dequantize
from statetrim.storage.quantized.scheme import schemes_in

ROWS, COLUMNS = 64, 96


def weight() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3))


def with_weights(form: Format, **changes: Any) -> Format:
    """The format with another description of its weights in the config."""
    weights = form.config["config_groups"]["group_0"]["weights"] | changes
    return replace(form, config=form.config | {"config_groups": {"group_0": {"weights": weights}}})


@pytest.mark.parametrize(
    ("name", "changes"),
    load_cases("quantised-configs"),
)
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


@pytest.mark.parametrize("size", [0, -2, "16", True, 2**40])
def test_a_group_size_that_is_none_is_refused(size: Any, tmp_path: Path) -> None:
    form = with_weights(FORMATS["w4a16"], group_size=size)
    with pytest.raises(st.StatetrimError, match="group size"):
        find(in_memory(FORMATS["w4a16"].quantize(weight())), form, tmp_path)


def test_groups_of_a_config_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    """Words of 8 codes or of 4, and a scale for each row: the headers fit both."""
    form = FORMATS["int4 by row"]
    groups = {
        "a": form.config["config_groups"]["group_0"],
        "b": {"weights": INT8 | {"strategy": "channel"}},
    }
    both = replace(form, config=form.config | {"config_groups": groups})
    with pytest.raises(st.StatetrimError, match="fits several groups"):
        find(in_memory(form.quantize(weight())), both, tmp_path)
    groups["b"] = {"weights": FLOAT8 | {"strategy": "channel"}}
    assert find(in_memory(form.quantize(weight())), both, tmp_path).element is INT4


def test_rotated_weights_are_refused(tmp_path: Path) -> None:
    form = FORMATS["fp8 by row"]
    rotated = replace(
        form, config=form.config | {"transform_config": {"config_groups": {"R1": {}}}}
    )
    with pytest.raises(st.StatetrimError, match="transform_config"):
        find(in_memory(form.quantize(weight())), rotated, tmp_path)


def test_another_stored_shape_is_refused(tmp_path: Path) -> None:
    form = FORMATS["int4 by row"]
    stored = in_memory(
        form.quantize(weight()) | {"weight_shape": torch.tensor([ROWS, COLUMNS - 4])}
    )
    with pytest.raises(st.StatetrimError, match=r"a\.weight_shape.*\[64, 92\].*\[64, 96\]"):
        dequantize(find(stored, form, tmp_path), stored)


@pytest.mark.parametrize("shape", [None, torch.zeros(3).long(), torch.zeros(2).int()])
def test_packed_words_without_their_shape_are_refused(shape: Tensor | None, tmp_path: Path) -> None:
    form = FORMATS["w4a16"]
    tensors = form.quantize(weight())
    del tensors["weight_shape"]
    tensors |= {} if shape is None else {"weight_shape": shape}
    with pytest.raises(st.StatetrimError, match="weight_shape"):
        find(in_memory(tensors), form, tmp_path)
