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

    page = run(artifacts, output)
    markdown = page.with_suffix(".md")
    if as_json:
        terminal.print_json({"html": str(page), "markdown": str(markdown)})
    else:
        terminal.print_text(f"written to {page} and {markdown.name}, in the same directory")
