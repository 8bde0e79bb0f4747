"""statetrim doctor"""

from pathlib import Path
from typing import Annotated

import typer

from . import checks
from .app import app
from .arguments import Json


@app.command()
def doctor(
    engine_python: Annotated[
        list[Path] | None,
        typer.Option(
            help="Python executable of an engine's environment; can be repeated.",
            callback=checks.executables,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show versions, devices, kernels and engines, which of them will be used, and any problems."""
    from ..console.doctor import show_environment
    from ..runtime.environment.doctor import doctor as run

    show_environment(run(engine_python or []), as_json=as_json)
