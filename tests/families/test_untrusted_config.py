"""Untrusted values in config.json are refused, for every family."""

import itertools
import shutil
from pathlib import Path
from typing import Any

from helpers import raw
from helpers.cases import load_cases
from helpers.refusal import run
from helpers.tiny import Load
from helpers.untrusted import (
    BAD_JSON,
    MIB,
    NOT_OBJECTS,
    Cases,
    SpoilCheckpoint,
    edited_config,
    heavy_file,
    inspect,
    many_names,
    prune,
    put,
    replaced,
    select,
    sparse_file,
)

CASES = Cases()
add = CASES.add


BAD_COUNTS = (-1, 0, 10**9, 1.5, "12", True, [12])
BAD_NUMBERS = (-1, 0.0, 1e300, 2**70, float("inf"), float("nan"), "2.0", True, [2.0])
HEAD_K_DIM: dict[str, str] = load_cases("config-widths")


def text_section(value: dict[str, Any]) -> dict[str, Any]:
    return value.get("text_config", value)


def update(fields: dict[str, Any], read_command: Any = inspect) -> SpoilCheckpoint:
    return edited_config(lambda c: text_section(c).update(fields) and None, read_command)


def field(name: str, value: Any, read_command: Any = inspect) -> SpoilCheckpoint:
    return update({name: value}, read_command)


def add_product(fields: dict[str, tuple[str, ...]], values: tuple[Any, ...]) -> None:
    """Every model type x field x value. CI takes those with a pair of the three that no earlier one
    has; rotating the values makes them few. `just untrusted-configs` takes all."""
    seen: set[tuple[Any, ...]] = set()
    for shift in range(len(values)):
        for row, (model_type, names) in enumerate(fields.items()):
            for column, name in enumerate(names):
                value = values[(shift + row + column) % len(values)]
                pairs = {*itertools.combinations((model_type, name, repr(value)), 2)}
                case_name = f"{model_type} {name} = {value!r}"
                add(case_name, field(name, value), repr(name), model_type, slow=pairs <= seen)
                seen |= pairs


add_product(load_cases("config-counts"), BAD_COUNTS)
add_product(load_cases("config-numbers"), BAD_NUMBERS)
for model_type, name in HEAD_K_DIM.items():
    # An absent or null field means the default, which does not fit the weights.
    absent = edited_config(lambda c, n=name: text_section(c).pop(n) and None, select)
    add(f"{model_type} without {name}", absent, "config implies", model_type)
    null = field(name, None, select)
    add(f"{model_type} {name} = null", null, "config implies", model_type)


def change_layer_count(change: int) -> SpoilCheckpoint:
    def edit(c: dict[str, Any]) -> None:
        section = text_section(c)
        for key in ("layer_types", "layers_block_type"):
            if key in section:
                section[key] = (section[key] * 2)[: len(section[key]) + change]
        if section.get("num_hidden_layers") is not None:
            section["num_hidden_layers"] += change

    return edited_config(edit, select)


for model_type in HEAD_K_DIM:
    fewer = -1 if model_type in ("mamba2", "falcon_h1", *raw.FLA) else -2
    add(f"{model_type} with fewer layers", change_layer_count(fewer), "does not list", model_type)
    add(f"{model_type} with more layers", change_layer_count(2), "lacks the tensor", model_type)

for model_types, name, values in load_cases("config-layers"):
    for model_type, value in itertools.product(model_types, values):
        message = f"{name}|no linear-attention layer"
        add(f"{model_type} {name} {value!r:.40}", field(name, value), message, model_type)
CASES.add_values(
    "config-values", lambda place, value: edited_config(lambda c: put(c, place, value))
)
for value in (3, "x", [1]):
    spoil = update({"model_type": "kimi_linear", "linear_attn_config": value})
    add(f"linear_attn_config {value!r}", spoil, "linear_attn_config")
for value in ("x", {"a": 1}, [1.0], [True], [10**9], [-3]):
    spoil = update({"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": value}})
    add(f"kda_layers {value!r}", spoil, "kda_layers")
for command in (select, prune):
    spoil = edited_config(lambda c: {"model_type": "kimi_linear"}, command)
    add(f"kimi_linear, {command.__name__}", spoil, "kimi_linear cannot be pruned|layer 0 lacks")
for model_type, fields in load_cases("config-uneven").items():
    message = "not a whole number for each"
    add(f"{model_type} heads {fields}", update(fields), message, model_type)
for model_type, fields in {
    "delta_net": {"num_heads": 5},
    "gla": {"expand_k": 0.7},
    "gated_deltanet": {"expand_v": 1.03},
    "kda": {"expand_v": 1e-9},
    "zamba2": {"n_mamba_heads": 5},
    "bamba": {"mamba_d_head": "auto", "mamba_n_heads": 7},
}.items():
    message = "cannot share|not a whole|divide"
    add(f"{model_type} indivisible {fields}", update(fields), message, model_type)
for model_type, fields in load_cases("config-huge").items():
    message = "no real model has"
    add(f"{model_type} absurd {fields}", update(fields, select), message, model_type)
for name, text in (BAD_JSON | NOT_OBJECTS).items():
    bad_config = replaced("config.json", lambda path, text=text: path.write_bytes(text))
    add(f"config is {name}", bad_config, r"config\.json")


def many_softmax_layers(c: dict[str, Any]) -> None:
    c.update(num_hidden_layers=4096, attn_layer_indices=[10**9] * 1_000_000)


add("config of a tebibyte", replaced("config.json", sparse_file), "larger than 16 MiB")
add("config names", heavy_file("config.json", many_names(15 * MIB, '"x":0')), "model_type")
add("softmax layers", edited_config(many_softmax_layers), "attn_layer_indices", "bamba")


def test_the_sound_ones_pass(sound: Load, tmp_path: Path) -> None:
    """Otherwise the cases below could be refused for the wrong reason."""
    for model_type in raw.CONFIGS:
        shutil.copytree(sound(model_type), tmp_path / model_type)
        assert run(prune(tmp_path / model_type))[0] is None
        assert (tmp_path / model_type / "out" / "config.json").is_file()


test_refused = CASES.refused()
