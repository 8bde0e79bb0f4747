"""statetrim doctor"""

from . import terminal
from .arguments import Json


def doctor(as_json: Json = False) -> None:
    from ..runtime.doctor import doctor as run

    environment = run()
    if as_json:
        terminal.print_json(environment.as_json())
        return
    terminal.print_text(f"statetrim {environment.statetrim}, models run on {environment.device}")
    for gpu in environment.gpus:
        terminal.print_text(f"GPU: {gpu}")
    for name, value in environment.system.items():
        if value:
            terminal.print_text(f"{name.replace('_', ' ')}: {value}")
    rows = []
    for package in environment.packages:
        extra = f"statetrim[{package.extra}]" if package.extra else "statetrim"
        rows.append((package.name, package.version or "no", package.allowed, extra))
    header = ("package", "installed", "asked for", "by")
    terminal.print_table("Packages", header, rows, left=range(4))
    for module, outcome in environment.kernels.items():
        terminal.print_text(f"kernels of {module}: {outcome}")
    for problem in environment.problems:
        terminal.print_text(f"problem: {problem}", "bold yellow")
    if not environment.problems:
        terminal.print_text("no problem found", "bold green")
