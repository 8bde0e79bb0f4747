"""Untrusted values in config.json are refused, for every family."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import raw
from helpers.refusal import run
from helpers.untrusted import (
    BAD_JSON,
    ESCAPE,
    MIB,
    NOT_OBJECTS,
    Case,
    Cases,
    SpoilCheckpoint,
    edited_config,
    heavy_file,
    inspect,
    many_names,
    prune,
    refused_within_a_gigabyte,
    select,
)

CASES = Cases()
add = CASES.add


BAD_COUNTS = (-1, 0, 10**9, 1.5, "12", True, [12])
BAD_NUMBERS = (-1, 0.0, 1e300, 2**70, float("inf"), float("nan"), "2.0", True, [2.0])
_LINEAR = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
           "linear_value_head_dim", "linear_conv_kernel_dim", "num_hidden_layers")  # fmt: skip
_MAMBA = ("mamba_d_state", "mamba_n_groups", "mamba_n_heads", "mamba_d_head", "mamba_d_conv",
          "hidden_size", "num_hidden_layers")  # fmt: skip
_FLA = ("num_heads", "num_hidden_layers", "conv_size")
COUNTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe",
         "qwen4_exp_text", "qwen4_exp"), _LINEAR),
    "olmo_hybrid": ("num_attention_heads", "hidden_size", *_LINEAR),
    "mamba2": ("state_size", "n_groups", "num_heads", "head_dim", "conv_kernel", "hidden_size",
               "num_hidden_layers"),
    "bamba": _MAMBA,
    "granitemoehybrid": _MAMBA,
    "falcon_h1": tuple("mamba_d_ssm" if name == "hidden_size" else name for name in _MAMBA),
    "nemotron_h": ("ssm_state_size", "n_groups", "mamba_num_heads", "mamba_head_dim",
                   "conv_kernel", "hidden_size", "num_hidden_layers"),
    "zamba2": ("mamba_d_state", "mamba_ngroups", "n_mamba_heads", "mamba_d_conv", "hidden_size",
               "num_hidden_layers"),
    "delta_net": ("hidden_size", *_FLA),
    "gated_deltanet": ("head_dim", "num_v_heads", *_FLA),
    "comba": ("head_dim", "num_v_heads", *_FLA),
    "gated_deltaproduct": ("head_dim", "num_householder", *_FLA),
    "kda": ("head_dim", "num_v_heads", *_FLA),
    "gla": ("hidden_size", "num_kv_heads", *_FLA),
}  # fmt: skip
NUMBERS = {
    "delta_net": ("expand_k", "expand_v"),
    "gla": ("expand_k", "expand_v"),
    **dict.fromkeys(("gated_deltanet", "comba", "gated_deltaproduct", "kda"), ("expand_v",)),
    **dict.fromkeys(("bamba", "granitemoehybrid", "zamba2"), ("mamba_expand",)),
    **dict.fromkeys(("mamba2", "nemotron_h"), ("expand",)),
}
HEAD_K_DIM = {
    **{name: "linear_key_head_dim" for name, f in COUNTS.items() if f[-6:] == _LINEAR},
    **dict.fromkeys(("bamba", "granitemoehybrid", "falcon_h1", "zamba2"), "mamba_d_state"),
    "mamba2": "state_size",
    "nemotron_h": "ssm_state_size",
    **dict.fromkeys(("delta_net", "gla"), "expand_k"),
    **dict.fromkeys(("gated_deltanet", "comba", "gated_deltaproduct", "kda"), "head_dim"),
}


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


add_product(COUNTS, BAD_COUNTS)
add_product(NUMBERS, BAD_NUMBERS)
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

LAYERS: dict[tuple[str, ...], tuple[str, tuple[Any, ...]]] = {
    ("qwen3_next", "qwen3_5", "olmo_hybrid", "granitemoehybrid"): ("layer_types", (
        "linear", 4, [], {}, [1, 2], [None], ["linear_attention"] * 5, ["x"] * 4, [["a"]] * 4)),
    ("nemotron_h",): ("layers_block_type", ("M-M*", 3, [], [3], ["attention"] * 4, ["x"])),
    ("bamba",): ("attn_layer_indices", (
        "x", 3, {"a": 1}, [1.0], ["1"], [True], [None], [-1], [10**9], [0, 1, 2], {}, False)),
    ("gated_deltanet", "gla"): ("attn", (
        1, "x", True, {}, {"layers": None}, {"layers": "0"}, {"layers": [0.0]}, {"layers": [True]},
        {"layers": {"0": 1}}, [1], [[]], {"layers": [0, 1]}, [{"layers": [0]}, {"layers": [1]}],
        False)),
}  # fmt: skip
for model_types, (name, values) in LAYERS.items():
    for model_type, value in itertools.product(model_types, values):
        message = f"{name}|no linear-attention layer"
        add(f"{model_type} {name} {value!r:.40}", field(name, value), message, model_type)
for value in (1, "yes", [], {}, 0.0):
    for model_type in ("delta_net", "kda"):
        spoil = field("use_short_conv", value)
        add(f"{model_type} use_short_conv {value!r}", spoil, "true or false", model_type)
for value in (None, [], "x", 3, True):
    spoil = edited_config(lambda c, v=value: c.update(text_config=v))
    add(f"text_config {value!r}", spoil, "text_config", "qwen3_5")
for value in ([], [1], {}, 3, True):
    spoil = field("model_type", value)
    add(f"text_config.model_type {value!r}", spoil, "'model_type' of .*'text_config'", "qwen3_5")
for value in (3, "x", [1]):
    spoil = update({"model_type": "kimi_linear", "linear_attn_config": value})
    add(f"linear_attn_config {value!r}", spoil, "linear_attn_config")
for value in ("x", {"a": 1}, [1.0], [True], [10**9], [-3]):
    spoil = update({"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": value}})
    add(f"kda_layers {value!r}", spoil, "kda_layers")
for value in (None, "", 3, [], {}, True, "x" * 101, "llama", "Qwen3_next", "../qwen3_next", ESCAPE):
    add(f"model_type {value!r:.40}", field("model_type", value), "model_type|not supported")
for value in ("rwkv7", "hgrn2", "retnet", "mesa_net", "linear_attn", "bailing_hybrid"):
    add(f"model_type {value}", field("model_type", value), "cannot be pruned")
for command in (select, prune):
    spoil = edited_config(lambda c: {"model_type": "kimi_linear"}, command)
    add(f"kimi_linear, {command.__name__}", spoil, "kimi_linear cannot be pruned|layer 0 lacks")
UNEVEN = {
    "qwen3_next": {"linear_num_value_heads": 3}, "qwen3_5": {"linear_num_key_heads": 3},
    "olmo_hybrid": {"linear_num_key_heads": 3}, "mamba2": {"n_groups": 3},
    "falcon_h1": {"mamba_n_groups": 5}, "nemotron_h": {"n_groups": 16},
    "gated_deltanet": {"num_v_heads": 3}, "comba": {"num_v_heads": 1}, "kda": {"num_v_heads": 5},
    "gla": {"num_kv_heads": 3},
}  # fmt: skip
for model_type, fields in UNEVEN.items():
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
HUGE = {
    "qwen3_next": {"linear_num_key_heads": 4096, "linear_num_value_heads": 4096,
                   "linear_key_head_dim": 4096},
    "gated_deltaproduct": {"num_heads": 4096, "head_dim": 4096, "num_householder": 16},
    "kda": {"num_heads": 1, "num_v_heads": 4096, "head_dim": 65536, "expand_v": 1 / 65536},
    "gla": {"hidden_size": 2**24, "num_heads": 4096, "num_kv_heads": 1, "expand_k": 16.0},
    "mamba2": {"n_groups": 4096, "num_heads": 4096, "state_size": 65536},
    "falcon_h1": {"mamba_n_groups": 4096, "mamba_n_heads": 4096, "mamba_d_state": 4096},
    "bamba": {"mamba_d_head": "auto", "mamba_expand": 1e-6},
}  # fmt: skip
for model_type, fields in HUGE.items():
    message = "no real model has"
    add(f"{model_type} absurd {fields}", update(fields, select), message, model_type)
for name, text in (BAD_JSON | NOT_OBJECTS).items():

    def bad_config(root: Path, text: bytes = text) -> list[str]:
        (root / "model" / "config.json").write_bytes(text)
        return inspect(root)

    add(f"config is {name}", bad_config, r"config\.json")


def big_config(root: Path) -> list[str]:
    os.truncate(root / "model" / "config.json", 2**40)  # sparse
    return inspect(root)


add("config of a tebibyte", big_config, "larger than 16 MiB")


def test_the_sound_ones_pass(sound: Callable[[str], Path], tmp_path: Path) -> None:
    """Otherwise the cases below could be refused for the wrong reason."""
    for model_type in raw.CONFIGS:
        shutil.copytree(sound(model_type), tmp_path / model_type)
        assert run(prune(tmp_path / model_type))[0] is None
        assert (tmp_path / model_type / "out" / "config.json").is_file()


test_refused = CASES.refused()


def many_softmax_layers(c: dict[str, Any]) -> None:
    c.update(num_hidden_layers=4096, attn_layer_indices=[10**9] * 1_000_000)


HEAVY = [
    Case("config names", heavy_file("config.json", many_names(15 * MIB, '"x":0')), "model_type"),
    Case("softmax layers", edited_config(many_softmax_layers), "attn_layer_indices", "bamba"),
]


test_refused_within_a_gigabyte = refused_within_a_gigabyte(HEAVY)
