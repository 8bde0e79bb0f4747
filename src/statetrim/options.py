"""Options of a command, each defined once.

A class decorated with `options` lists the options of a command. A field made by `option` has a
type, a default, a help text and a check. Python keywords (`takes_options`), the command line,
recipes, records, the reference page and the interface file are derived from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, dataclass_transform

from .errors import check_option_names
from .option_types import check_type

P = ParamSpec("P")
Options = TypeVar("Options")
Subject = TypeVar("Subject")
Result = TypeVar("Result")

Check = Callable[[str, Any], None]
"""Receives the name of an option and its value; raises StatetrimError if it is not allowed."""


@dataclass(frozen=True)
class OptionInfo:
    """What a field made by `option` knows besides its type and default."""

    help: str
    flags: tuple[str, ...] | None = None  # on the command line, by default `--name`; (): not there
    check: Check | None = None
    parse: Callable[[str], Any] | None = None  # from the text typed there to the value
    default_text: str | None = None  # the default as it is typed
    in_record: bool = True  # whether it changes the result, so that a record of the run lists it
    required: bool = False  # on the command line, although Python may leave it out
    argument: bool = False  # whether it is typed without a flag


def option(*, default: Any = MISSING, kw_only: bool = True, **info: Any) -> Any:
    """A field with the properties of `OptionInfo`; required if it has no `default`."""
    return field(default=default, kw_only=kw_only, metadata={"option": OptionInfo(**info)})


def output_option(*, default: Any = MISSING, kw_only: bool = True, **info: Any) -> Any:
    """The field of an options class that says where the result goes: `-o` on the command line."""
    info |= {"flags": ("-o", "--output"), "parse": Path, "in_record": False}
    return option(default=default, kw_only=kw_only, **info)


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, output_option)
)
def options(cls: type[Options]) -> type[Options]:
    """Make a frozen dataclass that checks types, then values, then itself by its method `check`."""

    def check_all(self: Any) -> None:
        for item in fields(self):
            check_type(item.name, item.type, getattr(self, item.name))
        for item in fields(self):
            value, check = getattr(self, item.name), option_info(item).check
            if check is not None and value is not None:
                check(item.name, value)
        if hasattr(self, "check"):
            self.check()

    cls.__post_init__ = check_all  # type: ignore[attr-defined]
    return dataclass(frozen=True)(cls)


def option_info(item: Field[Any]) -> OptionInfo:
    """The help, flags and check of a field made by `option`."""
    info: OptionInfo = item.metadata["option"]
    return info


class OptionsFunction(Generic[Subject, P, Options, Result]):
    """A function of a subject that takes its options by name; `run` takes them as an object."""

    def __init__(
        self, function: Callable[[Subject, Options], Result], options_class: Callable[P, Options]
    ) -> None:
        self.run, self.options_class = function, options_class
        update_wrapper(self, function)
        first = next(iter(signature(function).parameters.values()))
        subject = first.replace(kind=Parameter.POSITIONAL_ONLY)
        parameters = [subject, *signature(options_class).parameters.values()]
        returns = signature(function).return_annotation
        self.__signature__ = Signature(parameters, return_annotation=returns)

    def __call__(self, subject: Subject, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        valid_names = list(self.__signature__.parameters)[1:]
        check_option_names(self.run.__name__, kwargs, valid_names)
        return self.run(subject, self.options_class(*args, **kwargs))


def takes_options(
    options_class: Callable[P, Options],
) -> Callable[[Callable[[Subject, Options], Result]], OptionsFunction[Subject, P, Options, Result]]:
    """Decorate a function of a subject and an options object, so that callers name the options."""
    return lambda function: OptionsFunction(function, options_class)


def derive(options_class: Callable[..., Options], source: Any, **changes: Any) -> Options:
    """Options of another command: the fields that `source` has by the same name, and `changes`."""
    names = signature(options_class).parameters
    shared = {item.name: getattr(source, item.name) for item in fields(source)}
    return options_class(**{name: shared[name] for name in names if name in shared} | changes)


def changed_options(source: Any) -> list[str]:
    """Names of the options that differ from their defaults."""
    values = {item.name: (getattr(source, item.name), item.default) for item in fields(source)}
    return [name for name, (value, default) in values.items() if _plain(value) != _plain(default)]


def as_record(source: Any) -> dict[str, Any]:
    """The options that change the result, as values for JSON."""
    record = {}
    for item in fields(source):
        if option_info(item).in_record:
            record[item.name] = _plain(getattr(source, item.name))
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    is_json = value is None or isinstance(value, bool | int | float | str | list)
    return value if is_json else str(value)  # a path, a device, a dtype
