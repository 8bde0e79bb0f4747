"""The group of all commands: help that is not cut, options of every command, and Ctrl-C."""

from typing import Any

import typer
from typer.core import TyperGroup

_FLAGS, _WITH_VALUE = ("--quiet", "--traceback"), ("--log",)
"""Options of the program, which may stand after the command too."""


class Interrupted(BaseException):
    """Ctrl-C; what is kept, in a sentence. (Typer would turn a KeyboardInterrupt into silence.)"""


class Program(TyperGroup):
    """The program `statetrim`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _ours_first(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command's whole sentence, on as many lines as it takes."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.help or "") for name, one in self.commands.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            kept = getattr(stop, "__notes__", ["nothing was written"])[-1]  # of the outermost job
            raise Interrupted(f"interrupted; {kept}") from None


def _ours_first(words: list[str]) -> list[str]:
    """`trim M --quiet` as `--quiet trim M`."""
    ours, others, rest = [], [], iter(words)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word in _FLAGS or word.startswith(tuple(f"{name}=" for name in _WITH_VALUE)):
            ours.append(word)
        elif word in _WITH_VALUE:
            ours += [word, *(value for _, value in zip(range(1), rest, strict=False))]
        else:
            others.append(word)
    return ours + others


def version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        from ..version import __version__

        print(f"statetrim {__version__}")
        raise typer.Exit
