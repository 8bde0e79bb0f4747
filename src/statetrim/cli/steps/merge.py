"""statetrim merge"""

from pathlib import Path
from typing import Annotated

import typer

from .. import arguments, checks
from ..app import app


@app.command()
def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(help="Statistics of one model on different data.", callback=checks.there),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the sums are written.")],
) -> None:
    """Add statistics that were made apart."""
    arguments.refuse_existing(output)
    from ...artifacts.statistics import Statistics
    from ...artifacts.statistics import merge as run
    from ...console.steps.merge import show_merged
    from ...storage.output import saved

    record = {"format": "statetrim merge", "parts": [str(part) for part in parts]}
    saved(output, record, lambda _: run([Statistics.load(part) for part in parts]), Statistics.load)
    show_merged(len(parts), str(output))
