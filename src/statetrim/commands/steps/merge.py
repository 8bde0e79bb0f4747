"""statetrim merge"""

from pathlib import Path
from typing import Annotated

import typer

from ... import option_checks as checks
from .. import arguments, terminal


def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(
            help="Statistics files of one model, on different data.",
            callback=arguments.checked(checks.existing_files),
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write the statistics to.")
    ],
) -> None:
    arguments.check_output_free(output)
    from ...artifacts.statistics import Statistics
    from ...artifacts.statistics import merge as run
    from ...storage.output import run_and_save

    record = {"format": "statetrim merge", "parts": [str(part) for part in parts]}
    run_and_save(output, record, lambda _: run(parts), Statistics.load)
    terminal.print_text(f"{len(parts)} statistics added, written to {output}")
