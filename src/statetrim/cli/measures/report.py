"""statetrim report"""

from pathlib import Path
from typing import Annotated

import typer

from ..app import app
from ..arguments import Json


@app.command()
def report(
    artifacts: Annotated[
        list[Path],
        typer.Argument(help="Checkpoints before and after the cut, and JSON files of statetrim."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory for report.html and report.md.")
    ],
    as_json: Json = False,
) -> None:
    """Write one page that shows what was cut, what it saves and what it costs."""
    from ...console import terminal as console
    from ...reporting.report import report as run

    page = run(artifacts, output)
    if as_json:
        console.show_json({"html": str(page), "markdown": str(page.with_suffix(".md"))})
    else:
        print(f"written to {page} and {page.with_suffix('.md').name} beside it")
