"""What to keep, as it is written: every form, and what cannot be meant."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import statetrim as st
from statetrim.cut.request import SMALLEST_SHARE, Request, Side, parse_request

HALF, ALL = Fraction(1, 2), Fraction(1)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("0.5", Request(share=HALF)),
        ("50%", Request(share=HALF)),
        (0.25, Request(share=Fraction(1, 4))),
        ("1/3", Request(share=Fraction(1, 3))),
        (Fraction(1, 3), Request(share=Fraction(1, 3))),
        (1 / 3, Request(share=Fraction(repr(1 / 3)))),
        (0.00012345678901234567, Request(share=Fraction("0.00012345678901234567"))),
        (1e-5, Request(share=Fraction(1, 100_000))),
        ("0.899625631%", Request(share=Fraction(899_625_631, 10**11))),
        ("64x64", Request(shapes=((64, 64),))),
        ("96x100%", Request(shapes=((96, ALL),))),
        ("50%x12.5%", Request(shapes=((HALF, Fraction(1, 8)),))),
        ("8heads", Request(heads=8)),
        ("50%heads", Request(heads=HALF)),
        ("8heads:64x50%", Request(heads=8, shapes=((64, HALF),))),
        ("8heads:0=64x64", Request(heads=8, by_layer={"0": (64, 64)})),
        ("0=128x128, others=64x50%", Request(by_layer={"0": (128, 128), "others": (64, HALF)})),
        ("96x96,64x64", Request(shapes=((96, 96), (64, 64)))),
    ],
)
def test_every_form(written: str | float, meant: Request) -> None:
    assert parse_request(written) == meant
    assert parse_request(str(meant)) == meant
    assert meant.names_several == (meant.share is not None or len(meant.shapes) > 1)


SIDES = some.integers(1, 999_999) | some.integers(1, 1000).map(lambda n: Fraction(n, 1000))


@settings(deadline=None)
@given(some.lists(some.tuples(SIDES, SIDES), min_size=1, max_size=4, unique=True))
def test_a_request_is_read_as_it_is_written(shapes: list[tuple[Side, Side]]) -> None:
    request = Request(shapes=tuple(shapes))
    assert parse_request(str(request)) == request


@settings(deadline=None)
@given(some.fractions(0, 1) | some.floats(0, 1))
def test_every_number_is_a_share_that_can_be_written(number: Fraction | float) -> None:
    if not SMALLEST_SHARE <= Fraction(str(number)) < 1:
        with pytest.raises(st.StatetrimError, match="between 0 and 1"):
            parse_request(number)
        return
    request = parse_request(number)
    assert request.share == Fraction(str(number)) and float(request.share) == float(number)
    assert parse_request(str(request)) == request
    assert parse_request(json.loads(json.dumps(float(number)))).share == Fraction(
        str(float(number))
    )


DECIMALS = some.decimals("0.000000001", 100, allow_nan=False, places=9)


@settings(deadline=None)
@given(DECIMALS, DECIMALS)
def test_percentages_of_nine_decimals_are_read_again(keys: Decimal, values: Decimal) -> None:
    request = parse_request(f"{keys:f}%x{values:f}%")
    assert request.shapes[0][0] == Fraction(keys) / 100
    assert parse_request(str(request)) == request


@pytest.mark.parametrize(
    "written",
    ["", "64", "1", "0", "0%", "1.5", "-0.5", "nan", "1e999", "1/0", "2/2", "3/2x4", "many", "64x",
     "1x", "x64", "64x64x4", "0%x4", "101%x4", "64x64,", "64x64,64x64", "12", "12GiB",
     "heads",
     "8heads:", "8heads:0.5", "8heads:2heads", "64x64:8heads", "8heads:64x64,32x32", "0=64",
     "a=1x1", "0=1x1,0=2x2", "9999999x4", "0." + "1" * 99],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(written: str) -> None:
    with pytest.raises(st.StatetrimError):
        parse_request(written)
