"""Shapes of equal bytes that `studies/two_axes.py` compares."""

import importlib
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import statetrim as st

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="module")
def two_axes() -> Any:
    sys.path.insert(0, str(STUDIES))
    yield importlib.import_module("two_axes")
    sys.path.remove(str(STUDIES))


def state(keys: int, values: int) -> st.Geometry:
    return st.Geometry((0,), 2, 4, keys, values)


@given(keys=some.integers(8, 256), values=some.integers(8, 256), sixteenths=some.integers(2, 15))
def test_shapes_at_equal_bytes_use_them_and_no_more(
    two_axes: Any, keys: int, values: int, sixteenths: int
) -> None:
    share = Fraction(sixteenths, 16)
    shapes = two_axes.shapes_for_share(state(keys, values), share)
    budget = share * keys * values
    for name, (k, v) in shapes.items():
        assert 1 <= k <= keys and 1 <= v <= values
        assert k * v <= budget
        slack = 2 * k + 2 if name == "square" else max(k, v) + 1
        clipped = name not in ("key", "value") and (k == keys or v == values)
        assert clipped or budget - k * v < slack, (name, k, v)
    assert shapes["key"][1] == values and shapes["value"][0] == keys
    assert shapes["square"][0] == shapes["square"][1]


def test_a_part_that_leaves_nothing_is_refused(two_axes: Any) -> None:
    for share in (Fraction(1, 16), Fraction(0), Fraction(1)):
        with pytest.raises(st.StatetrimError, match="leaves an axis with nothing"):
            two_axes.shapes_for_share(state(8, 8), share)
