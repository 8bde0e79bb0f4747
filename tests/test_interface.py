"""The public interface is stable: names and parameters, with their types and defaults. Commands and
options are in docs/commands.md, which tests/test_docs.py compares with the program.

`just interface` records an intended change.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import statetrim

WRITTEN = Path(__file__).parent / "data" / "interface.txt"


def facts() -> Iterator[str]:
    """`trim(*, out): str | Path`, `Plan.keep: int` and the like; what follows the colon is the
    type."""
    for name in sorted(statetrim.__all__):
        value = getattr(statetrim, name)
        if inspect.isclass(value):
            yield from class_facts(name, value)
        elif callable(value):
            yield from function_facts(name, value)
        else:
            yield f"{name}: {type(value).__name__}"


def class_facts(name: str, cls: Any) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__mro__[1:-1] if base.__name__[0] != "_")
    yield f"{name}: class {bases}".rstrip()
    if cls.__init__ is not object.__init__ and not issubclass(cls, Exception):
        yield from function_facts(name, cls)
    for member, value in sorted(vars(cls).items()):
        if member.startswith("_"):
            continue
        function = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(value, property) or hasattr(value, "attrname"):  # a cached property
            getter: Any = value.fget if isinstance(value, property) else value.func
            yield f"{name}.{member}: {type_text(inspect.signature(getter).return_annotation)}"
        elif inspect.isfunction(function):
            is_static = isinstance(value, staticmethod)
            bound = function if is_static else MethodType(function, cls)
            yield from function_facts(f"{name}.{member}", bound)
        elif not is_dataclass(cls):
            yield f"{name}.{member}: attribute"


def function_facts(name: str, function: Any) -> Iterator[str]:
    signature = inspect.signature(function)
    yield f"{name}(): {type_text(signature.return_annotation)}"
    for parameter in signature.parameters.values():
        stars = {parameter.KEYWORD_ONLY: "*, ", parameter.VAR_POSITIONAL: "*"}
        default = "<function>" if callable(parameter.default) else repr(parameter.default)
        shown = "" if parameter.default is parameter.empty else f"={default}"
        star = stars.get(parameter.kind, "")
        yield f"{name}({star}{parameter.name}{shown}): {type_text(parameter.annotation)}"


def type_text(annotation: Any) -> str:
    """The text of a type, without module names."""
    if annotation is inspect.Signature.empty:
        return "nothing"
    return re.sub(r"(?<!\w)(?:\w+\.)+(?=\w)", "", inspect.formatannotation(annotation)).strip("'\"")


def test_the_interface_is_the_one_written_down() -> None:
    assert list(facts()) == WRITTEN.read_text().splitlines(), "if this is meant: just interface"


if __name__ == "__main__":
    print("\n".join(facts()))
