"""Numbers as text, and type checks of untrusted JSON values."""

from math import inf, nan

from statetrim.maths.formatting import (
    bytes_text,
    duration_text,
    evenly_spaced,
    percent_text,
    quantity_text,
    relative_change_text,
)
from statetrim.maths.units import is_integer_list, is_number


def test_bytes_read_in_binary_units() -> None:
    assert [bytes_text(n) for n in (512, 2**20 - 1, 2**20, 5 * 2**30)] == [
        "0.5 KiB",
        "1,024.0 KiB",
        "1.0 MiB",
        "5,120.0 MiB",
    ]


def test_changes_have_a_sign_and_none_from_nothing() -> None:
    assert (relative_change_text(8, 4), relative_change_text(4, 5), relative_change_text(0, 3)) == (
        "-50.0%",
        "+25.0%",
        "",
    )


def test_shares_and_quantities() -> None:
    assert (percent_text(0.12345), percent_text(1.0), percent_text(nan), percent_text(inf)) == (
        "12.35%",
        "100%",
        "none",
        "none",
    )
    assert (quantity_text(0.01234), quantity_text(99.9), quantity_text(12345.6)) == (
        "0.0123",
        "99.9",
        "12,346",
    )


def test_durations_grow_from_seconds_to_hours() -> None:
    seconds = (0.01, 89, 91, 89 * 60, 2 * 3600)
    assert [duration_text(s) for s in seconds] == ["1 s", "89 s", "2 min", "89 min", "2.0 h"]


def test_a_few_of_many_keep_both_ends() -> None:
    assert evenly_spaced([1, 2, 3], 3) == [1, 2, 3]
    assert evenly_spaced(range(100), 4) == [0, 33, 66, 99]
    assert evenly_spaced("abc", 2) == ["a", "c"]


def test_what_counts_as_a_number_in_an_untrusted_file() -> None:
    assert is_number(0) and is_number(-1.5)
    assert not any(map(is_number, (True, None, "1", nan, inf, 1e301)))
    assert (
        is_integer_list([1, 2])
        and not is_integer_list([1.0])
        and not is_integer_list([True])
        and not is_integer_list((1,))
    )
