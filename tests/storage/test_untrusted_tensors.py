"""Untrusted tensors: missing, unknown, of another shape, quantised."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers import raw
from helpers.untrusted import CONV, EMBEDDING, ESCAPE, QKV, Cases, SpoilCheckpoint, select
from statetrim.families import family_of

CASES = Cases()
add = CASES.add


def weights(change: Callable[[dict[str, Any]], Any], command: Any = select) -> SpoilCheckpoint:
    """Let `change` edit the mapping name -> tensor, and save it in two shards."""

    def spoil(root: Path) -> list[str]:
        settings = json.loads((root / "model" / "config.json").read_text())
        values = raw.tensors(settings)
        change(values)
        shutil.rmtree(root / "model")
        raw.save(root / "model", settings, values, shards=2)
        return command(root)

    return spoil


def renamed(name: str, new: str) -> SpoilCheckpoint:
    return weights(lambda w: w.update({new: w.pop(name)}) and None)


def reshaped(name: str, *shape: int) -> SpoilCheckpoint:
    return weights(lambda w: w.update({name: torch.ones(shape)}))


def as_dtype(name: str, dtype: str) -> SpoilCheckpoint:
    def change(w: dict[str, Any]) -> None:
        w[name] = w[name].to(getattr(torch, dtype))

    return weights(change)


for dtype in ("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32", "int64", "bool"):
    for name in (QKV, CONV):
        add(f"{name} as {dtype}", as_dtype(name, dtype), "quantised")
for shape in ((80,), (80, 0), (80, 16, 1), (79, 16), (81, 16), (0, 16), (16, 80), (1,), ()):
    add(f"projection {shape}", reshaped(QKV, *shape), "has shape")
for shape in ((80,), (80, 4), (80, 1, 5), (80, 1, 0), (79, 1, 4), (160, 1, 4), (4, 1, 80), ()):
    add(f"convolution {shape}", reshaped(CONV, *shape), "has shape")
for model_type in raw.CONFIGS:
    settings = raw.CONFIGS[model_type]
    some = [name for name in raw.tensors(settings) if name != EMBEDDING]
    mixer = next(n for n in some if ".attn." in n or ".linear_attn." in n or ".mixer." in n or
                 ".mamba." in n)  # fmt: skip
    mixer = re.match(r".*\.(attn|linear_attn|mixer|mamba)\.", mixer).group()  # type: ignore[union-attr]
    # Every tensor with channel rows in the first layer must exist, unless it is optional.
    family = family_of(settings)
    channel_rows = family.channel_rows(settings, family.geometry(settings))
    optional = {rows.tensor for rows in channel_rows if rows.optional}
    for name in some:
        leaf = name.removeprefix(mixer)
        if name.startswith(mixer) and leaf not in optional:
            add(f"{model_type} without {leaf}", weights(lambda w, n=name: w.pop(n)),
                "lacks the tensor", model_type)  # fmt: skip
    for leaf in ("surprise.weight", "q_norm.weight", "in_proj_x.weight\nsecond line", ESCAPE):
        new = weights(lambda w, n=mixer + leaf: w.update({n: w[EMBEDDING].clone()}))
        add(f"{model_type} with {leaf!r}", new, "refusing to guess", model_type)
    twice = weights(lambda w, n=f"mtp.{some[0]}", s=some[0]: w.update({n: w[s].clone()}))
    if not some[0].endswith(("q_proj.weight", "k_proj.weight")):  # softmax has them too
        add(f"{model_type} under mtp.", twice, "outside the decoder", model_type)
    scale = weights(lambda w, n=f"{some[0]}_scale_inv": w.update({n: w[EMBEDDING].clone()}))
    add(f"{model_type} with fp8 block scales", scale, "quantised", model_type)
for leaf in ("linear_attn.A_log", "linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
    for prefix in ("mtp.layers.0.", "model.mtp.0.", "model.layers.00.", "model.layers.1234567.",
                   "x.model.layers.0.", "model.layers.-1.", "model.layers.\u0660."):  # fmt: skip
        new = weights(lambda w, n=prefix + leaf: w.update({n: w[CONV].clone()}))
        add(f"{prefix}{leaf}", new, "outside the decoder")
    new = weights(lambda w, n=f"model.layers.1.{leaf}": w.update({n: w[CONV].clone()}))
    add(f"{leaf} in a softmax layer", new, "does not list layer 1")
new = weights(lambda w: w.update({QKV.replace("model.", "model.language_model.", 1): w[QKV] + 1}))
add("a layer under both prefixes", new, "twice")
add("a claimed tensor with a line break", renamed(QKV, QKV + "\n"), "refusing to guess")
for value in (float("nan"), float("inf")):
    spoiled = weights(lambda w, v=value: w[QKV].view(-1).__setitem__(0, v))
    add(f"weights with {value}", spoiled, "not finite")


for leaf in ("qweight", "qzeros", "scales", "g_idx"):
    name = QKV.replace("weight", leaf)
    new = weights(lambda w, n=name: w.update({n: w[EMBEDDING].int()}))
    add(f"GPTQ tensor {leaf}", new, "quantised")


test_refused = CASES.refused()
