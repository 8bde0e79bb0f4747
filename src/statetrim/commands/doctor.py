"""statetrim doctor"""

from pathlib import Path
from typing import Annotated

import typer

from .. import option_checks as checks
from ..maths.units import GIB
from . import arguments, terminal
from .arguments import Json


def doctor(
    engine_python: Annotated[
        list[Path] | None,
        typer.Option(
            help="Python executable of an engine's environment; can be repeated.",
            callback=arguments.checked(checks.executables),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from ..runtime.doctor import doctor as run

    environment = run(engine_python or [])
    if as_json:
        terminal.print_json(environment.as_json())
        return
    terminal.print_text(
        f"statetrim {environment.statetrim}, Python {environment.python}, {environment.system}, "
        f"{environment.cores} cores"
    )
    rows = []
    for package in environment.packages:
        extra = f"statetrim[{package.extra}]" if package.extra else "statetrim"
        rows.append((package.name, package.version or "no", package.allowed, extra))
    header = ("package", "installed", "asked for", "by")
    terminal.print_table("Packages", header, rows, left=range(4))
    for number, gpu in enumerate(environment.gpus):
        terminal.print_text(
            f"cuda:{number}: {gpu.name}, {gpu.memory / GIB:.0f} GiB, capability {gpu.capability}"
        )
    cuda = f"PyTorch for CUDA {environment.cuda}" if environment.cuda else "PyTorch without CUDA"
    terminal.print_text(f"models run on {environment.device} ({cuda})")
    kernels = []
    for kernel in environment.kernels:
        use = "broken" if kernel.broken else "used" if kernel.used else "not used"
        kernels.append(f"{kernel.name} {f'{kernel.version} ({use})' if kernel.version else 'no'}")
    terminal.print_text(f"kernels: {', '.join(kernels)}")
    rows = []
    for types in environment.uses:
        runtime = types.runtime or "nothing here: weights only"
        rows.append((", ".join(types.model_types), runtime, types.recurrence, types.convolution))
    header = ("models", "run in", "recurrence", "convolution")
    terminal.print_table("What would be used", header, rows, left=range(4))
    engines = [f"{name} {version}" for name, version in environment.engines.items() if version]
    terminal.print_text(f"engines: {', '.join(engines) or 'none in this environment'}")
    installed = [f"{name} {version}" for name, version in environment.quantizers.items() if version]
    missing = [name for name, version in environment.quantizers.items() if version is None]
    without = f" (not installed: {', '.join(missing)})" if missing else ""
    terminal.print_text(
        f"quantised checkpoints: statetrim reads them without packages; transformers loads those "
        f"of {', '.join(['FP8', *installed])}{without}"
    )
    if environment.settings:
        settings = " ".join(f"{name}={value}" for name, value in environment.settings.items())
        terminal.print_text(f"settings: {settings}")
    for problem in environment.problems:
        terminal.print_text(f"problem: {problem}", "bold yellow")
    for option in environment.optional:
        terminal.print_text(f"optional: {option}")
    if not environment.problems:
        terminal.print_text("no problem found", "bold green")
