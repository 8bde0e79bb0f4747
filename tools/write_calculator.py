"""The script of the calculator page: the arithmetic of the package in JavaScript, and its models.

    python tools/write_calculator.py calculator.js

The page runs the arithmetic of the engines itself, translated statement by statement, so there is
one source; a test compares both. Anything beyond the small subset of Python that these functions
keep to is refused here.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "docs" / "calculator" / "configs.json"
OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.Lt: "<", ast.Gt: ">",
    ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "===", ast.NotEq: "!==", ast.And: "&&", ast.Or: "||",
    ast.Not: "!", ast.USub: "-",
}  # fmt: skip
FUNCTIONS = {"ceil": "Math.ceil", "floor": "Math.floor", "max": "Math.max", "min": "Math.min"}
CONSTANTS = {True: "true", False: "false"}


def javascript(source: str, classes: Collection[str] = (), of: str | None = None) -> str:
    """The functions of a module in JavaScript, or the function `of` and those that it calls;
    dataclasses, of the module or named `classes`, become plain objects."""
    tree = ast.parse(source)
    known = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}.union(classes)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    names = functions.keys() if of is None else _called(of, functions)
    return "\n".join(_function(functions[name], known) for name in functions if name in names)


def _called(name: str, functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """The function, and those of `functions` that it calls."""
    called, open_names = set[str](), [name]
    while open_names:
        name = open_names.pop()
        if name in functions and name not in called:
            called.add(name)
            nodes = ast.walk(functions[name])
            open_names += [node.id for node in nodes if isinstance(node, ast.Name)]
    return called


def _function(node: ast.FunctionDef, classes: set[str]) -> str:
    names = [argument.arg for argument in node.args.args]
    for number, default in enumerate(reversed(node.args.defaults), 1):
        names[-number] += f" = {_expression(default, classes)}"
    assigned = {target.id for each in ast.walk(node) if isinstance(each, ast.Assign)
                for target in each.targets if isinstance(target, ast.Name)}  # fmt: skip
    variables = f"  let {', '.join(sorted(assigned))};\n" if assigned else ""
    body = _block(node.body[1:], classes)  # after the docstring
    return f"function {node.name}({', '.join(names)}) {{\n{variables}{body}\n}}"


def _block(statements: list[ast.stmt], classes: set[str]) -> str:
    return "\n".join(_statement(statement, classes) for statement in statements)


def _statement(node: ast.stmt, classes: set[str]) -> str:
    match node:
        case ast.Return(value=ast.expr() as value):
            return f"return {_expression(value, classes)};"
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return f"{name} = {_expression(value, classes)};"
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
            return f"{name} {OPERATORS[type(op)]}= {_expression(value, classes)};"
        case ast.If(test=test, body=body, orelse=orelse):
            otherwise = f" else {{\n{_block(orelse, classes)}\n}}" if orelse else ""
            return f"if ({_expression(test, classes)}) {{\n{_block(body, classes)}\n}}{otherwise}"
        case ast.For(target=ast.Name(id=name), iter=items, body=body):
            inside = _block(body, classes)
            return f"for (const {name} of {_expression(items, classes)}) {{\n{inside}\n}}"
    raise TypeError(f"line {node.lineno}: no translation for {type(node).__name__}")


def _expression(node: ast.expr, classes: set[str]) -> str:
    def translate(each: ast.expr) -> str:
        return _expression(each, classes)

    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=bool() as value):
            return CONSTANTS[value]
        case ast.Constant(value=int() | float() as value):
            return repr(value)
        case ast.Attribute(value=value, attr=name):
            return f"{translate(value)}.{name}"
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return f"Math.floor({translate(left)} / {translate(right)})"
        case ast.BinOp(left=left, op=op, right=right):
            return f"({translate(left)} {OPERATORS[type(op)]} {translate(right)})"
        case ast.UnaryOp(op=op, operand=operand):
            return f"{OPERATORS[type(op)]}({translate(operand)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return f"({translate(left)} {OPERATORS[type(op)]} {translate(right)})"
        case ast.BoolOp(op=op, values=values):
            return f"({f' {OPERATORS[type(op)]} '.join(map(translate, values))})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return f"({translate(test)} ? {translate(body)} : {translate(orelse)})"
        case ast.Call(func=ast.Name(id=name), args=copied, keywords=keywords) if keywords and (
            name == "replace" or name in classes
        ):
            fields = [f"{each.arg}: {translate(each.value)}" for each in keywords]
            return f"({{{', '.join([*(f'...{translate(each)}' for each in copied), *fields])}}})"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return f"{FUNCTIONS.get(name, name)}({', '.join(map(translate, arguments))})"
    raise TypeError(f"line {node.lineno}: no translation for {type(node).__name__}")


def page_models() -> dict[str, Any]:
    """Name -> its caches, as released and cut, and the bytes of a state's number by engine."""
    from statetrim.artifacts.state_sizes import DTYPE_BYTES
    from statetrim.errors import StatetrimError
    from statetrim.families import families
    from statetrim.families.contract import resized_config
    from statetrim.serving.capacity.compare import cache_model, default_state_dtype
    from statetrim.serving.engines import counted_engines
    from statetrim.storage.checkpoint import Checkpoint

    models = {}
    for name, config in json.loads(CONFIGS.read_text()).items():
        family = families()[config["model_type"]]
        model = Checkpoint(Path(name), config, family, family.geometry(config))
        before = model.geometry
        entry: dict[str, Any] = {
            "shape": before.shape.replace(" x ", "x"),
            "released": asdict(cache_model(model, before)),
            "state_bytes": {
                key: DTYPE_BYTES[default_state_dtype(engine, model)]
                for key, engine in counted_engines().items()
            },
        }
        half_keys, half_values = before.head_k_dim // 2, before.head_v_dim // 2
        for keys, values in ((half_keys, half_values), (half_keys, before.head_v_dim)):
            after = before.resized(keys, values)
            try:
                if values < before.head_v_dim and family.value_refusal(config):
                    continue
                resized_config(family, config, after)
            except StatetrimError:
                continue
            entry["cut_shape"] = after.shape.replace(" x ", "x")
            entry["cut"] = asdict(cache_model(model, after))
            if entry["cut"]["shared_groups"] is False and before.num_k_heads % 4 == 0:
                entry["by_layer"] = asdict(_by_layer(cache_model(model, after), before))
            break
        models[name] = entry
    return models


def _by_layer(cut: Any, before: Any) -> Any:
    """A quarter of the layers whole, each stored in four parts of a quarter of its heads."""
    (narrow,) = cut.states
    whole = narrow.layers // 4
    parts = replace(
        narrow,
        layers=4 * whole,
        heads=narrow.heads // 4,
        keys=before.head_k_dim,
        values=before.head_v_dim,
        conv_key_heads=narrow.conv_key_heads // 4,
        conv_value_heads=narrow.conv_value_heads // 4,
    )
    return replace(cut, states=(parts, replace(narrow, layers=narrow.layers - whole)))


def script() -> str:
    """Data and functions of the page, as one script that defines `calculator`."""
    from statetrim.serving.capacity import arithmetic
    from statetrim.serving.engines import counted_engines

    engines = counted_engines()
    data = {
        "models": page_models(),
        "defaults": asdict(arithmetic.Settings(memory=2**34, context=4096)),
        "kvBytes": {key: dict(engine.kv_dtypes) for key, engine in engines.items()},
    }
    code = [javascript(inspect.getsource(arithmetic))]
    by_key = []
    for key, engine in engines.items():
        assert engine.fit is not None
        name, module = engine.fit.__name__, inspect.getmodule(engine.fit)
        by_key.append(f"{json.dumps(key)}: {name}")
        if module is not arithmetic:
            code.append(javascript(inspect.getsource(module), ["Fit"], of=name))
    functions, constants = "\n".join(code), json.dumps(data)
    return (
        "// Written by tools/write_calculator.py from statetrim.serving.\n"
        f"const calculator = (() => {{\n{functions}\n"
        f"return {{engines: {{{', '.join(by_key)}}}, ...{constants}}};\n}})();\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(script(), encoding="utf-8")
