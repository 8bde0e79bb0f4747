"""The group of all commands: help in full sentences, global options, version and Ctrl-C."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .index import COMMANDS

_GLOBAL_FLAGS = ("--quiet", "--traceback")
_LAST_PANELS = {"How it is served": 1, "Where it runs": 2, "Options": 3}


class Interrupted(BaseException):
    """Ctrl-C; the message says what is kept. Typer would report a KeyboardInterrupt as Aborted."""


class StatetrimGroup(TyperGroup):
    """The program `statetrim`, whose global options may also follow the command."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _global_options_first(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List each command with its full help sentence, wrapped instead of shortened."""
        rows = [(name, sentence) for name, (_, sentence) in COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C is raised as `Interrupted`, with what is kept."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            # storage.space gives it a message; without one, no output had been started.
            message = str(interrupt) or "nothing was written"
            raise Interrupted(f"interrupted; {message}") from None


class _GroupedCommand(TyperCommand):
    """A command whose help lists its options below the headings of their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            title = "Arguments" if parameter.param_type_name == "argument" else panel
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append(record)
        for title in sorted(sections, key=lambda title: _LAST_PANELS.get(title, 0)):
            if sections[title]:
                with formatter.section(title):
                    formatter.write_dl(sections[title])


class _Commands(Mapping[str, Any]):
    """The commands by name; the module of each is imported when it is used."""

    def __getitem__(self, name: str) -> Any:
        module, sentence = COMMANDS[name]
        function = getattr(import_module(f".{module}", __package__), name)
        program = typer.Typer(add_completion=False, rich_markup_mode=None)
        program.command(name, cls=_GroupedCommand, help=sentence)(function)
        return typer.main.get_command(program)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _global_options_first(words: list[str]) -> list[str]:
    """Move global options before the command: `trim M --quiet` becomes `--quiet trim M`."""
    end = words.index("--") if "--" in words else len(words)
    global_words = [word for word in words[:end] if word in _GLOBAL_FLAGS]
    command_words = [word for word in words[:end] if word not in _GLOBAL_FLAGS]
    return global_words + command_words + words[end:]


def print_version(requested: bool) -> None:
    """Print the version and exit, if --version was given."""
    if requested:
        from ..version import __version__

        print(f"statetrim {__version__}")
        raise typer.Exit
