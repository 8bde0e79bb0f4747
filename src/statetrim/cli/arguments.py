"""What several commands take, and how it is read."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import StatetrimError

DEFAULT_TEXT = "HuggingFaceFW/fineweb-edu"

Model = Annotated[str, typer.Argument(help="Checkpoint directory, config.json, or cached hub id.")]
FamilyFile = Annotated[
    Path | None, typer.Option("--family", help="Your own Python file that defines FAMILY.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Keep = Annotated[
    str | None, typer.Option(help="Channels to keep per key head (64), or the fraction (0.5).")
]
KeepValues = Annotated[
    str | None, typer.Option(help="Channels to keep per value head, or the fraction.")
]
Square = Annotated[
    str | None, typer.Option(help="Keep as many of keys and of values: a square state.")
]


def open_model(model: str, family: Path | None) -> Any:
    from ..families import family_from_file
    from ..storage.checkpoint import open_checkpoint

    return open_checkpoint(model, family_from_file(family) if family else None)


def wanted(
    model: Any,
    keep: str | None,
    keep_values: str | None,
    square: str | None,
    state_mib: float | None,
    sequences: int | None,
    memory_gib: float | None,
) -> tuple[str | int | None, str | int | None]:
    """What to keep of keys and of values, from the one of several wishes that was made."""
    from ..maths.units import MIB
    from ..serving.budget import share_of, widest_that_fits
    from ..serving.inspect import StateSize, stored_dtype

    if (sequences is None) != (memory_gib is None):
        raise StatetrimError("--sequences and --memory-gib go together; give both or neither")
    wishes = [keep is not None or keep_values is not None, square, state_mib, sequences]
    if sum(bool(wish) for wish in wishes) != 1:
        raise StatetrimError(
            "say once what to keep: --keep 64 (and --keep-values), --square 64, "
            "--state-mib-per-sequence 40, or --sequences 64 --memory-gib 24"
        )
    if state_mib is None and sequences is None:
        return widths(model, keep, keep_values, square)
    most = state_mib * MIB if state_mib is not None else share_of(memory_gib or 0.0, sequences or 0)
    dtype = stored_dtype(model)
    found = widest_that_fits(
        model.geometry, most, lambda geometry: StateSize.of(geometry, dtype).total, square=False
    )
    return found.head_k_dim, None


def widths(
    model: Any, keep: str | None, keep_values: str | None, square: str | None
) -> tuple[str | None, str | None]:
    """What to keep of keys and of values."""
    from ..geometry import resolve_square

    if square is None:
        return keep, keep_values
    if keep or keep_values:
        raise StatetrimError("--square says what to keep of both axes; leave out the other two")
    keys, values = resolve_square(square, model.geometry)
    return str(keys) if keys else None, str(values) if values else None


def method_options(pairs: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise StatetrimError(f"--option takes NAME=VALUE, such as score=q, not {pair!r}")
        if name in ("model", "method", "keep", "seed", "progress"):
            raise StatetrimError(f"{name!r} is not an option of a method; leave out --option")
        try:
            options[name] = json.loads(text)
        except (ValueError, RecursionError):
            options[name] = text
    return options


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def count(text: str) -> int:
    """4096, 256k or 64m; k is 1024, as token counts are usually meant."""
    number, unit = text[:-1], text[-1:].lower()
    scale = {"k": 2**10, "m": 2**20, "g": 2**30}.get(unit)
    digits = text if scale is None else number
    if not digits.isdecimal() or len(digits) > 12:
        raise StatetrimError(f"{text!r} is not a number of tokens; write 4096 or 256k")
    return int(digits) * (scale or 1)


def refuse_existing(output: Path) -> None:
    if output.exists():
        raise StatetrimError(f"{output} exists already and is not overwritten; choose another name")
