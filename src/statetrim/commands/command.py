"""Commands whose options are the fields of an options class."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_origin

import typer

from ..common_options import parse_names
from ..option_types import alternatives, check_type
from ..options import option_info


def command(options_class: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command. The function's own parameters are its arguments, and options that only
    concern the command line; its parameter `options` is an object of `options_class`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = signature(function, eval_str=True).parameters.values()
        own = [parameter for parameter in parameters if parameter.name != "options"]
        generated = list(_parameters(options_class))

        def call(**values: Any) -> None:
            chosen = {}
            for item in command_line_fields(options_class):
                chosen[item.name] = _value(item, values.pop(item.name))
            function(**values, options=options_class(**chosen))

        call.__name__ = function.__name__
        arguments = [p for p in own if p.default is Parameter.empty]
        others = [p for p in own if p.default is not Parameter.empty]
        ordered = [
            p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*arguments, *generated, *others)
        ]
        call.__signature__ = Signature(ordered)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in ordered}
        return call

    return decorate


def command_line_fields(options_class: type[Any]) -> list[Field[Any]]:
    """The fields that have a flag: those that the class itself defines, then those of its bases."""
    shown = [item for item in fields(options_class) if option_info(item).flags != ()]
    return sorted(shown, key=lambda item: item.name not in options_class.__annotations__)


def typed_default(item: Field[Any], value: Any) -> Any:
    """A value of the option as it would be typed: `("text", "mqar")` as "text,mqar"."""
    if _is_inverted(item):
        return not value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return value


def _parameters(options_class: type[Any]) -> Iterator[Parameter]:
    panels = dict[str, str]()
    for title, names in getattr(options_class, "PANELS", {}).items():
        panels |= dict.fromkeys(names.split(), title)
    for item in command_line_fields(options_class):
        info, typed = option_info(item), _typed(item.type)
        if info.parse is Path:
            typed = Path
        flags = info.flags or (f"--{item.name.rstrip('_').replace('_', '-')}",)
        if typed is bool and info.flags is None and item.default is None:
            flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}",)
        default: Any = Parameter.empty
        if item.default is not MISSING and not info.required:
            default = typed_default(item, item.default)
            if info.default_text is not None:
                default = typed(info.default_text)
        if default is None or (typed == list[str] and not info.required):
            typed, default = typed | None, None
        callback = _callback(item, flags[-1])
        option: Any = typer.Option(
            *flags, help=info.help, callback=callback, rich_help_panel=panels.get(item.name)
        )
        if info.argument:
            option = typer.Argument(help=info.help, callback=callback)
        yield Parameter(
            item.name,
            Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[typed, option],
        )


def _typed(hint: Any) -> Any:
    """The type in which a value is typed: bool, int, float, list[str] for NAME=VALUE, or str."""
    types = {*alternatives(hint)} - {NoneType}
    for simple in (bool, int, float):
        if types == {simple}:
            return simple
    if all(get_origin(each) is Mapping for each in types):
        return list[str]
    return str


def _callback(item: Field[Any], flag: str) -> Callable[[Any], Any]:
    """Checks a typed value while the command line is parsed, before torch is imported."""

    def check(value: Any) -> Any:
        parsed, info = _value(item, value), option_info(item)
        if parsed is not None:
            check_type(flag, item.type, parsed)
        if info.check is not None and parsed is not None:
            info.check(flag, parsed)
        return value

    return check


def _value(item: Field[Any], typed: Any) -> Any:
    info = option_info(item)
    if typed is None or (typed is False and item.default is None and info.flags is not None):
        return None if item.default is MISSING else item.default
    if _is_inverted(item):
        return not typed
    if info.parse is not None:
        return info.parse(typed)
    if isinstance(item.default, tuple) and isinstance(typed, str):
        return parse_names(typed)
    return typed


def _is_inverted(item: Field[Any]) -> bool:
    """Whether the flag switches off what is on by default, as in `--no-control`."""
    return item.default is True
