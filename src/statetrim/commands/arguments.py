"""Options that several commands share, and parsers for their values."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import StatetrimError
from . import checks

SELECT_PARAMETERS = (
    "model", "method", "keep", "keep_values", "square", "value_method", "value_options", "seed",
    "statistics", "shares", "widths", "keep_heads", "head_method", "progress",
)  # fmt: skip
"""Parameters of `select`, which --option cannot set."""
DEFAULT_TEXT = "HuggingFaceFW/fineweb-edu"

Model = Annotated[str, typer.Argument(help="Checkpoint directory, config.json, or hub id.")]
FamilyFile = Annotated[
    Path | None,
    typer.Option(
        "--family", help="Python file that defines FAMILY. It is executed: use only your own."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Keep = Annotated[
    str | None,
    typer.Option(
        help="Key channels to keep per head: a count (64) or a fraction (0.5).",
        callback=checks.channel_amount,
    ),
]
KeepValues = Annotated[
    str | None,
    typer.Option(
        help="Value channels to keep per head: a count or a fraction.",
        callback=checks.channel_amount,
    ),
]
Square = Annotated[
    str | None,
    typer.Option(
        help="Key and value channels to keep per head, the same number of each.",
        callback=checks.channel_amount,
    ),
]
Widths = Annotated[
    str | None,
    typer.Option(
        help="An uneven cut: key x value channels of each layer, such as 0=64x64,others=32x32.",
    ),
]

KeepHeads = Annotated[
    str | None,
    typer.Option(
        help="Whole value heads to keep: a count (8) or a fraction. Loses more than "
        "removing channels; for models whose channels cannot be removed.",
        callback=checks.channel_amount,
    ),
]

Share = Annotated[
    list[str] | None,
    typer.Option("--share", help="Weight of one source of the statistics, such as recall=0.5."),
]
Device = Annotated[
    str | None, typer.Option(help="Device: cpu, cuda or cuda:1; by default the first GPU.")
]
DeviceMap = Annotated[
    str | None, typer.Option(help="'auto' spreads a model over all GPUs, layer by layer.")
]
MaxMemory = Annotated[
    str | None,
    typer.Option(help="Memory to use on each GPU with --device-map, such as 0=70GiB,1=40GiB."),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, float16 or bfloat16; by default as stored.",
        callback=checks.one_of("float32", "float16", "bfloat16"),
    ),
]


def parse_count(text: str) -> int:
    """Parse a number such as 4096 or 64k, where k is 1024; raises StatetrimError for other text."""
    from ..maths.units import parse_token_count

    return parse_token_count(text)


def open_model(
    model: str, family: Path | None, *, weights: bool | Literal["headers"] = True
) -> Any:
    """Open a checkpoint, with the family that the Python file `family` defines, which is executed.

    `weights` is for hub ids: False downloads only the config, "headers" reads only headers.
    """
    from ..families import family_from_file
    from ..storage.checkpoint import open_checkpoint

    custom_family = family_from_file(family) if family else None
    return open_checkpoint(model, custom_family, weights=weights)


def parse_method_options(pairs: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE options of a method. Raises StatetrimError for other text and for names of
    `select`'s own parameters."""
    options = parse_named_values(pairs, "--option", "score=q")
    for name in options:
        if name in SELECT_PARAMETERS:
            raise StatetrimError(f"{name!r} is not an option of a method; leave out --option")
    return options


def parse_named_values(pairs: list[str], flag: str, example: str) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value that is not valid JSON is text, and the last of equal names
    counts. Raises StatetrimError, with `flag` and `example`, unless NAME is an identifier."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise StatetrimError(f"{flag} takes NAME=VALUE, such as {example}, not {pair!r}")
        try:
            options[name] = json.loads(text)
        except (ValueError, RecursionError):
            options[name] = text
    return options


def parse_shares(pairs: list[str]) -> dict[str, float] | None:
    """Parse weights of statistics sources, such as recall=0.5; None if there are no pairs. Raises
    StatetrimError if a weight is not a number; names and range are not checked."""
    share_by_source: dict[str, float] = {}
    for pair in pairs:
        name, equals, number = pair.partition("=")
        try:
            share_by_source[name] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise StatetrimError(f"a share is SOURCE=PART, such as recall=0.5, not {pair[:40]!r}")
    return share_by_source or None


def parse_layer_numbers(text: str) -> list[int]:
    """Parse layer numbers: 0,4 becomes [0, 4], empty text []. Raises StatetrimError for other
    text."""
    numbers = parse_names(text)
    if not all(name.isdecimal() and len(name) < 6 for name in numbers):
        raise StatetrimError(f"{text[:40]!r} are not layer numbers; write them as 0,4")
    return [int(name) for name in numbers]


def parse_names(text: str) -> list[str]:
    """Split a list at its commas; empty names are dropped."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_output_free(output: Path) -> None:
    """Raise StatetrimError if the output exists, unless an interrupted run left a part of it to
    resume."""
    from ..storage.output import check_absent, partial_path

    if not partial_path(output).exists():
        check_absent(output)
