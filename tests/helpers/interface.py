"""The public interface, one fact per line: public names with their parameters, and commands with
their options.

`python -m helpers.interface python` (or `command-line`), in `tests/`, prints what is committed in
`tests/data/interface/`.
"""

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import typer

import statetrim
import statetrim.commands


def python_facts() -> list[str]:
    """`trim(*, out): str | Path`, `Plan.keep: int` and the like; what follows the colon is the
    type."""
    facts: list[str] = []
    for name in sorted(vars(statetrim)["__all__"]):
        value = getattr(statetrim, name)
        if inspect.isclass(value):
            facts += class_facts(name, value)
        elif callable(value):
            facts += function_facts(name, value)
        else:
            facts.append(f"{name}: {type(value).__name__}")
    return facts


def class_facts(name: str, cls: Any) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__mro__[1:-1] if base.__name__[0] != "_")
    yield f"{name}: class {bases}".rstrip()
    if cls.__init__ is not object.__init__ and not issubclass(cls, Exception):
        yield from function_facts(name, cls)
    for member, value in sorted(vars(cls).items()):
        raw = inspect.unwrap(getattr(value, "__func__", value))
        if member.startswith("_"):
            continue
        if isinstance(value, property) or hasattr(value, "attrname"):  # a cached property
            getter: Any = value.fget if isinstance(value, property) else value.func
            yield f"{name}.{member}: {type_text(inspect.signature(getter).return_annotation)}"
        elif inspect.isfunction(raw):
            bound = raw if isinstance(value, staticmethod) else without_self(raw)
            yield from function_facts(f"{name}.{member}", bound)
        elif not is_dataclass(cls):
            yield f"{name}.{member}: attribute"


def without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def function_facts(name: str, function: Any) -> Iterator[str]:
    signature = function if isinstance(function, inspect.Signature) else inspect.signature(function)
    yield f"{name}(): {type_text(signature.return_annotation)}"
    for parameter in signature.parameters.values():
        star = "*, " if parameter.kind is parameter.KEYWORD_ONLY else ""
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else star
        default = (
            "" if parameter.default is parameter.empty else f"={default_text(parameter.default)}"
        )
        yield f"{name}({star}{parameter.name}{default}): {type_text(parameter.annotation)}"


def default_text(default: Any) -> str:
    return "<function>" if callable(default) else repr(default)


def type_text(annotation: Any) -> str:
    """The text of a type, without module names."""
    if annotation is inspect.Signature.empty:
        return "nothing"
    text = (
        annotation.__name__
        if inspect.isclass(annotation) and not typing.get_args(annotation)
        else str(annotation)
    )
    return re.sub(r"(?<!\w)(?:\w+\.)+(?=\w)", "", text).strip("'\"")


def command_line_facts() -> list[str]:
    """`trim --keep=None: str | None` and the like; what follows the colon is the type."""
    group: Any = typer.main.get_command(statetrim.commands.app)
    facts = list(option_facts("statetrim", group))
    for name, command in sorted(group.commands.items()):
        facts += [f"{name}: command", *option_facts(name, command)]
    return facts


def option_facts(name: str, command: Any) -> Iterator[str]:
    """Names and flags from typer, defaults and types from the function's signature."""
    signature = inspect.signature(command.callback)
    types = typing.get_type_hints(command.callback)
    for parameter in command.params:
        flags = " ".join([*parameter.opts, *parameter.secondary_opts])
        if parameter.name not in signature.parameters:  # shell completion is typer's own
            yield f"{name} {flags}: of typer"
            continue
        declared = signature.parameters[parameter.name]
        shown_name = flags if parameter.param_type_name == "option" else parameter.name.upper()
        default = "" if declared.default is declared.empty else f"={declared.default!r}"
        yield f"{name} {shown_name}{default}: {type_text(types[parameter.name])}"


FACTS = {"python": python_facts, "command-line": command_line_facts}

if __name__ == "__main__":
    print("\n".join(FACTS[sys.argv[1]]()))
