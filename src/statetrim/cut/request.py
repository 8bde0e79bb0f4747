"""What to keep of the state, as `--to` says it (`to=` in Python, `to:` in a recipe).

    0.5, 50%, 1/3             this share of the state's bytes; the cuts that reach it are compared
    2x, 2.5x                  this many times the sequences of an engine; likewise
    64x64, 96x128             key x value channels per head; a side may be a percentage: 64x100%
    8heads, 50%heads          whole value heads
    8heads:64x64              of the heads that stay, these channels; by layer too
    0=128x128,others=64x64    by layer
    96x96,64x64,48x48         compare these shapes and keep one

Nothing here needs a model or torch, so that the command line answers a mistake at once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from ..errors import StatetrimError

OTHERS = "others"
REQUEST_HELP = (
    "What to keep: 64x64 channels per head (64x100% for keys alone), 8heads, 8heads:64x64, or "
    "0=128x128,others=64x64 by layer. To compare cuts: 0.5 of the state, 2x the sequences, or "
    "96x96,64x64."
)
"""The help of the option `to`."""
To = str | float | Fraction
"""What to keep, as it is written; a number is a share of the state's bytes."""
Side = int | Fraction
"""Channels or heads to keep: a count, or a part of all of them."""
Sides = tuple[Side, Side]
"""Key and value channels per head."""

_DECIMAL = r"[0-9]{1,6}(?:\.[0-9]{1,20})?(?:e-[0-9]{1,3})?"  # any float as Python writes it
_RATIO = "[0-9]{1,300}/[1-9][0-9]{0,329}"  # the exact value of any share that is a float
_NUMBER = f"(?:{_DECIMAL}|{_RATIO})"
_SIDE = rf"[0-9]{{1,6}}|{_NUMBER}%"
_LARGEST_GAIN = 16  # of sequences; more is a shape that lacks a side
SMALLEST_SHARE = Fraction(1, 10**12)  # of a state; no model has as many channels
_SHARE = re.compile(rf"({_NUMBER})(%?)")
_GAIN = re.compile(rf"({_NUMBER})x")
_HEADS = re.compile(rf"({_SIDE})heads?(?::(.+))?")
_SHAPE = re.compile(rf"({_SIDE})x({_SIDE})")
_LAYER = re.compile(rf"([0-9]{{1,6}}|{OTHERS})=(.*)")


@dataclass(frozen=True)
class Request:
    """What to keep. Exactly one field is set, but `heads` may come with one shape or `by_layer`."""

    share: Fraction | None = None  # of the state's bytes
    gain: Fraction | None = None  # times the sequences that fit in an engine
    shapes: tuple[Sides, ...] = ()
    heads: Side | None = None  # value heads of every layer
    by_layer: Mapping[str, Sides] = field(default_factory=dict)  # layer, or OTHERS

    @property
    def is_goal(self) -> bool:
        """Whether it says what to reach, by whatever cut."""
        return self.share is not None or self.gain is not None

    @property
    def names_several(self) -> bool:
        """Whether several cuts are to be compared."""
        return self.is_goal or len(self.shapes) > 1

    def __str__(self) -> str:
        """The request as `parse_request` reads it."""
        if self.share is not None:
            return _number_text(self.share)
        if self.gain is not None:
            return f"{_number_text(self.gain)}x"
        parts = [] if self.heads is None else [f"{_text_of(self.heads)}heads"]
        if self.by_layer:
            parts.append(",".join(f"{i}={_shape_text(x)}" for i, x in self.by_layer.items()))
        elif self.shapes:
            parts.append(",".join(map(_shape_text, self.shapes)))
        return ":".join(parts)


def check_request(name: str, to: To) -> None:
    parse_request(to)


def parse_request(to: To) -> Request:
    """Read what to keep; raises StatetrimError for anything else than the forms above."""
    text = str(to).replace(" ", "")
    if match := _SHARE.fullmatch(text):
        share = Fraction(match[1]) / (100 if match[2] else 1)
        if not SMALLEST_SHARE <= share < 1:
            raise StatetrimError(
                f"the share of the state to keep must be between 0 and 1, not {text[:40]}; 0.5 "
                "halves it, and channels per head are written 64x64, or 64x100% for keys alone"
            )
        return Request(share=share)
    if match := _GAIN.fullmatch(text):
        gain = Fraction(match[1])
        if not 1 < gain <= _LARGEST_GAIN:
            raise StatetrimError(
                f"{text[:40]} is no gain between 1x and {_LARGEST_GAIN}x; write 2x for twice as "
                "many sequences, or 64x64 channels per head"
            )
        return Request(gain=gain)
    if match := _HEADS.fullmatch(text):
        request = _parse_shapes(match[2]) if match[2] else Request()
        if request.names_several:
            raise StatetrimError(f"{text[:40]!r} names several shapes; heads are cut to one shape")
        return replace(request, heads=_parse_side(match[1]))
    return _parse_shapes(text)


def _parse_shapes(text: str) -> Request:
    """Read one shape, several to compare, or shapes by layer."""
    entries = text.split(",")
    if "=" in text:
        return Request(by_layer=_parse_layers(entries, text))
    shapes = tuple(_parse_shape(entry, text) for entry in entries)
    if len(set(shapes)) < len(shapes):
        raise StatetrimError(f"{text[:40]!r} names a shape twice; shapes to compare must differ")
    return Request(shapes=shapes)


def _parse_layers(entries: list[str], text: str) -> dict[str, Sides]:
    """Layer, or OTHERS -> key and value channels; each may occur once."""
    by_layer: dict[str, Sides] = {}
    for entry in entries:
        match = _LAYER.fullmatch(entry)
        if match is None or match[1] in by_layer:
            raise StatetrimError(
                f"cannot read {entry[:40]!r} in what to keep; write key x value channels by layer, "
                "each once, such as 0=64x64,others=32x32"
            )
        by_layer[match[1]] = _parse_shape(match[2], text)
    return by_layer


def _parse_shape(entry: str, text: str) -> Sides:
    match = _SHAPE.fullmatch(entry)
    if match is None:
        raise StatetrimError(
            f"cannot read {text[:40]!r} as what to keep; write 0.5 for half of the state, 2x for "
            "twice the sequences, 64x64 channels per head, 8heads, 8heads:64x64, "
            "0=128x128,others=64x64 by layer, or 96x96,64x64 to compare shapes"
        )
    return _parse_side(match[1]), _parse_side(match[2])


def _parse_side(text: str) -> Side:
    if not text.endswith("%"):
        return int(text)
    part = Fraction(text[:-1]) / 100
    if not 0 < part <= 1:
        raise StatetrimError(f"cannot keep {text} of an axis; take more than 0% and at most 100%")
    return part


def _text_of(side: Side) -> str:
    return f"{_number_text(100 * side)}%" if isinstance(side, Fraction) else str(side)


def _number_text(number: Fraction) -> str:
    """A decimal if it is exact, else a ratio."""
    for decimal in (f"{float(number):.12g}", repr(float(number))):
        if Fraction(decimal) == number:
            return decimal
    return f"{number.numerator}/{number.denominator}"


def _shape_text(sides: Sides) -> str:
    return f"{_text_of(sides[0])}x{_text_of(sides[1])}"


def side_text(amount: Any) -> str:
    """A side of a shape, from a count (64) or a fraction (0.5 is 50%); other text as it is."""
    text = str(amount).strip()
    try:
        return text if text.isdecimal() else _text_of(Fraction(str(float(text))))
    except ValueError:
        return text
