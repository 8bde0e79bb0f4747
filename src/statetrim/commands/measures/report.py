"""statetrim report"""

from pathlib import Path
from typing import Annotated

import typer

from ... import option_checks as checks
from .. import arguments, terminal
from ..arguments import Json


def report(
    artifacts: Annotated[
        list[Path],
        typer.Argument(
            help="The original and the cut checkpoint, and JSON files that statetrim wrote.",
            callback=arguments.checked(checks.artifact_files),
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Output directory for report.html and report.md.")
    ],
    as_json: Json = False,
) -> None:
    from ...reporting.report import report as run

    show_page(run(artifacts, output), as_json=as_json)


def show_page(page: Path, *, as_json: bool) -> None:
    """Print the paths of the report."""
    if as_json:
        terminal.print_json({"html": str(page), "markdown": str(page.with_suffix(".md"))})
    else:
        terminal.print_text(
            f"written to {page} and {page.with_suffix('.md').name}, in the same directory"
        )
