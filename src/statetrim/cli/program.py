"""The group of all commands: help that is not cut, options of every command, and Ctrl-C."""

from typing import Any

import typer
from typer.core import TyperGroup

_GLOBAL_FLAGS, _GLOBAL_OPTIONS_WITH_VALUE = ("--quiet", "--traceback"), ("--log",)
"""Options of the program, which may stand after the command too."""


class Interrupted(BaseException):
    """Ctrl-C; what is kept, in a sentence. (Typer would turn a KeyboardInterrupt into silence.)"""


class StatetrimGroup(TyperGroup):
    """The program `statetrim`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _global_options_first(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command's whole sentence, on as many lines as it takes."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.help or "") for name, command in self.commands.items()]
            )

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            message = getattr(interrupt, "__notes__", ["nothing was written"])[
                -1
            ]  # of the outermost job
            raise Interrupted(f"interrupted; {message}") from None


def _global_options_first(words: list[str]) -> list[str]:
    """`trim M --quiet` as `--quiet trim M`."""
    global_words, command_words, remaining = [], [], iter(words)
    for word in remaining:
        if word == "--":
            command_words += [word, *remaining]
        elif word in _GLOBAL_FLAGS or word.startswith(
            tuple(f"{name}=" for name in _GLOBAL_OPTIONS_WITH_VALUE)
        ):
            global_words.append(word)
        elif word in _GLOBAL_OPTIONS_WITH_VALUE:
            global_words += [word, *(value for _, value in zip(range(1), remaining, strict=False))]
        else:
            command_words.append(word)
    return global_words + command_words


def print_version(requested: bool) -> None:
    """Print the version and end."""
    if requested:
        from ..version import __version__

        print(f"statetrim {__version__}")
        raise typer.Exit
