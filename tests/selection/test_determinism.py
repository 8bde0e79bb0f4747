"""Equal seeds give equal plans in every process; permuted channels give permuted plans."""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statetrim as st
from statetrim.methods import find_method, method_names

if TYPE_CHECKING:  # another process runs this file as a script, without the helpers
    from helpers.forker import Forker

KEEP = 5
SEED = 3
CALIBRATED = [name for name in method_names() if find_method(name).needs]
WITH_SCORE = [name for name in method_names("key") if name not in ("rand", "ghost")]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in method_names("key")),
    *((name, {"score": side}) for name in WITH_SCORE for side in "qk"),
    ("drrqr", {"normalized": True}),
]

Kept = list[list[list[int]]]  # layer, head, channel


@cache
def plans(directory: Path, text: Path) -> list[Kept]:
    """The channels that every method keeps, of keys, then of values, after a new calibration."""
    model = st.open(directory)
    statistics = st.calibrate(model, text, methods=CALIBRATED, tokens=640, length=32)
    key_plans = [
        st.select(model, m, f"{KEEP}x100%", seed=SEED, statistics=statistics, method_options=o)
        for m, o in CASES
    ]
    value_plans = [
        st.select(model, to=f"100%x{KEEP}", method=m, seed=SEED, statistics=statistics)
        for m in method_names("value")
    ]
    tables = [plan.axes["key"].kept for plan in key_plans]
    tables += [plan.axes["value"].kept for plan in value_plans]
    return [[kept.tolist() for kept in layers.values()] for layers in tables]


def test_every_run_gives_the_same_plans(checkpoint: Any, text: Path, warm_forker: Forker) -> None:
    """Another interpreter has other hashes."""
    model = checkpoint("delta_net")
    other = warm_forker.run([__file__, str(model), str(text)], script=True)
    assert other["code"] == 0, other["err"][-2000:]
    assert json.loads(other["out"].splitlines()[-1]) == plans(model, text)


def permuted(source: Path, out: Path) -> dict[tuple[int, int], Tensor]:
    """Write the delta_net in `source` with every head's q and k channels in an order of its own.

    Returns the orders by layer and head: the new channel `i` is the old channel `order[i]`.
    """
    shutil.copytree(source, out)
    geometry = st.open(source).geometry
    heads, channels = geometry.num_k_heads, geometry.head_k_dim
    generator = torch.Generator().manual_seed(5)
    orders = {
        (layer, head): torch.randperm(channels, generator=generator)
        for layer in geometry.layers
        for head in range(heads)
    }
    touched = 0
    for path in out.glob("*.safetensors"):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            _, _, layer_part = name.partition("layers.")
            if any(part in layer_part for part in ("q_proj.", "k_proj.", "q_conv1d.", "k_conv1d.")):
                layer = int(layer_part.partition(".")[0])
                by_head = tensor.unflatten(0, (heads, channels))
                rows = [by_head[head][orders[layer, head]] for head in range(heads)]
                tensors[name] = torch.cat(rows)
                touched += 1
        save_file(tensors, path, metadata={"format": "pt"})
    assert touched == 6 * len(geometry.layers), "two weights, two filters and two biases a layer"
    return orders


def test_permuting_a_models_channels_permutes_the_plans(
    checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    source = checkpoint("delta_net")
    orders = permuted(source, tmp_path / "permuted")
    layers = st.open(source).geometry.layers
    before, after = plans(source, text), plans(tmp_path / "permuted", text)
    for (method, options), old, new in zip(CASES, before, after, strict=False):
        if method == "rand":
            assert new == old, "rand never looks at the model"
            continue
        mapped = [
            [sorted(orders[layer, head][kept].tolist()) for head, kept in enumerate(heads)]
            for layer, heads in zip(layers, new, strict=True)
        ]
        assert mapped == old, (method, options)
        assert new != old, (method, options)


if __name__ == "__main__":
    print(json.dumps(plans(*map(Path, sys.argv[1:]))))
