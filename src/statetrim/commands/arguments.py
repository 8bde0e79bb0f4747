"""Arguments that several commands share, and how models are opened."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Model = Annotated[str, typer.Argument(help="Checkpoint directory, config.json, or hub id.")]
Models = Annotated[list[str], typer.Argument(help="Checkpoints to compare with the baseline.")]
FamilyFile = Annotated[
    Path | None,
    typer.Option(
        "--family", help="Python file that defines FAMILY. It is executed: use only your own."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def open_model(
    model: str, family: Path | None, *, weights: bool | Literal["headers"] = True
) -> Any:
    """Open a checkpoint, with the family that the file `family` defines, which is executed."""
    from ..families import family_from_file
    from ..storage.checkpoint import open_checkpoint

    custom_family = family_from_file(family) if family else None
    return open_checkpoint(model, custom_family, weights=weights)


def check_output_free(output: str | Path | None) -> None:
    """Raise StatetrimError if the output exists, unless an interrupted run is to be resumed."""
    from ..storage.output import check_absent, partial_path

    if output is not None and not partial_path(Path(output)).exists():
        check_absent(Path(output))
