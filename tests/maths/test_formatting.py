"""Numbers as text, and type checks of untrusted JSON values."""

from math import inf, nan

import pytest

from statetrim.maths.formatting import (
    bytes_text,
    evenly_spaced,
    percent_text,
    quantity_text,
    relative_change_text,
)
from statetrim.maths.units import is_integer_list, is_number


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (bytes_text(512), "0.5 KiB"),
        (bytes_text(2**20 - 1), "1,024.0 KiB"),
        (bytes_text(5 * 2**30), "5,120.0 MiB"),
        (relative_change_text(8, 4), "-50.0%"),
        (relative_change_text(4, 5), "+25.0%"),
        (relative_change_text(0, 3), ""),
        (percent_text(0.12345), "12.35%"),
        (percent_text(1.0), "100%"),
        (percent_text(nan), "none"),
        (quantity_text(0.01234), "0.0123"),
        (quantity_text(99.9), "99.9"),
        (quantity_text(12345.6), "12,346"),
    ],
)
def test_numbers_read_in_their_unit(shown: str, text: str) -> None:
    assert shown == text


def test_a_few_of_many_keep_both_ends() -> None:
    assert evenly_spaced([1, 2, 3], 3) == [1, 2, 3]
    assert evenly_spaced(range(100), 4) == [0, 33, 66, 99]
    assert evenly_spaced("abc", 2) == ["a", "c"]
    assert evenly_spaced("abc", 1) == ["a"]


def test_what_counts_as_a_number_in_an_untrusted_file() -> None:
    assert is_number(0) and is_number(-1.5)
    assert not any(map(is_number, (True, None, "1", nan, inf, 1e301)))
    assert is_integer_list([1, 2])
    assert not any(map(is_integer_list, ([1.0], [True], (1,))))
