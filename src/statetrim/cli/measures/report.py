"""statetrim report"""

from pathlib import Path
from typing import Annotated

import typer

from .. import checks
from ..app import app
from ..arguments import Json


@app.command()
def report(
    artifacts: Annotated[
        list[Path],
        typer.Argument(
            help="The original and the cut checkpoint, and JSON files that statetrim wrote.",
            callback=checks.artifact_files,
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Output directory for report.html and report.md.")
    ],
    as_json: Json = False,
) -> None:
    """Write one page that shows what was cut, what it saves and what it costs."""
    from ...console.measures.report import show_page
    from ...reporting.report import report as run

    show_page(run(artifacts, output), as_json=as_json)
