"""statetrim report"""

from pathlib import Path
from typing import Annotated

import typer

from .. import terminal
from ..arguments import Json, Model


def report(
    model: Model,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Output directory for report.html and report.md.")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="JSON files that statetrim wrote, besides those of the cut.", exists=True
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The original; sizes are compared with it.")
    ] = None,
    as_json: Json = False,
) -> None:
    from ...reporting.report import report as run

    page = run(model, files or (), out=output, baseline=baseline)
    markdown = page.with_suffix(".md")
    if as_json:
        terminal.print_json({"html": str(page), "markdown": str(markdown)})
    else:
        terminal.print_text(f"written to {page} and {markdown.name}, in the same directory")
