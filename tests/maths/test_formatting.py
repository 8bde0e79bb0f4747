"""Type checks of untrusted JSON values, and a few of many."""

from math import inf, nan

from statetrim.maths.formatting import evenly_spaced
from statetrim.maths.units import is_integer_list, is_number


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
