"""What a person sees of `doctor`: tables, and a sentence for each problem."""

from rich.table import Table

from ..maths.units import GIB
from ..runtime.environment.doctor import Environment
from . import terminal


def show_environment(found: Environment, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json(found.as_json())
        return
    terminal.say(
        f"statetrim {found.statetrim}, Python {found.python}, {found.system}, {found.cores} cores"
    )
    _show_packages(found)
    _show_devices(found)
    _show_uses(found)
    engines = [f"{name} {version}" for name, version in found.engines.items() if version]
    terminal.say(f"engines: {', '.join(engines) or 'none in this environment'}")
    if found.settings:
        settings = " ".join(f"{name}={value}" for name, value in found.settings.items())
        terminal.say(f"settings: {settings}")
    for problem in found.problems:
        terminal.say(f"problem: {problem}", "bold yellow")
    for option in found.optional:
        terminal.say(f"optional: {option}")
    if not found.problems:
        terminal.say("no problem found", "bold green")


def _show_packages(found: Environment) -> None:
    table = Table(title="Packages", title_justify="left")
    for name in ("package", "installed", "asked for", "by"):
        table.add_column(name)
    for one in found.packages:
        extra = f"statetrim[{one.extra}]" if one.extra else "statetrim"
        table.add_row(one.name, one.version or "no", one.allowed, extra)
    terminal.show(table)


def _show_devices(found: Environment) -> None:
    for number, gpu in enumerate(found.gpus):
        terminal.say(
            f"cuda:{number}: {gpu.name}, {gpu.memory / GIB:.0f} GiB, capability {gpu.capability}"
        )
    cuda = f"PyTorch for CUDA {found.cuda}" if found.cuda else "PyTorch without CUDA"
    terminal.say(f"models run on {found.device} ({cuda})")
    parts = []
    for one in found.kernels:
        state = "broken" if one.broken else "used" if one.used else "not used"
        parts.append(f"{one.name} {one.version} ({state})" if one.version else f"{one.name} no")
    terminal.say(f"kernels: {', '.join(parts)}")


def _show_uses(found: Environment) -> None:
    table = Table(title="What would be used", title_justify="left")
    for name in ("models", "run in", "recurrence", "convolution"):
        table.add_column(name)
    for use in found.uses:
        runtime = use.runtime or "nothing here: weights only"
        table.add_row(", ".join(use.model_types), runtime, use.recurrence, use.convolution)
    terminal.show(table)
