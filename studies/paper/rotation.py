"""Rotating the residual stream (QuaRot, SliceGPT) does not change the function of a cut.

It tests the introduction's claim that pruning is compatible with such rotations.

    python studies/paper/rotation.py MODEL --text train.jsonl --test wiki.valid.raw [--samples 3]

The norms' weights are folded into the projections behind them, the embeddings are untied, and a
random orthogonal matrix is multiplied into everything that writes to the stream, its transpose into
everything that reads it, in float64. A row has the change of the cut's logits, and the fraction of
channels that each method chooses both in the original and in the rotated original.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import statetrim as st
from samples import ModelScorer, Row, Rows, parsed, parser, statistics
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live

METHODS = ("l1", "s_wanda", "grad", "drrqr", "product")
READS = ("q_proj", "k_proj", "v_proj", "b_proj", "a_proj", "g_proj", "gate_proj", "up_proj")
WRITES = ("o_proj", "down_proj")


def orthogonal(size: int, seed: int) -> Tensor:
    noise = torch.randn(
        size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    rotation: Tensor = torch.linalg.qr(noise).Q
    return rotation


def rotated(model: st.Checkpoint, seed: int, out: Path) -> st.Checkpoint:
    """`model`, a DeltaNet or Gated DeltaNet, with another basis of the residual stream."""
    tensors = {name: model.tensor(name).double() for name in model.tensors}
    rotation = orthogonal(model.config["hidden_size"], seed)
    embeddings = "model.embeddings.weight"
    tensors.setdefault("lm_head.weight", tensors[embeddings].clone())
    tensors["lm_head.weight"] *= tensors["model.norm.weight"]
    for name, weight in tensors.items():
        *before, leaf = name.removesuffix(".weight").split(".")
        block, part = ".".join(before[:-1]), before[-1] if before else ""
        if leaf in READS:
            norm = "attn_norm" if part == "attn" else "mlp_norm"
            tensors[name] = weight * tensors[f"{block}.{norm}.weight"] @ rotation.T
        elif leaf in WRITES:
            tensors[name] = rotation @ weight
        elif name in (embeddings, "lm_head.weight"):
            tensors[name] = weight @ rotation.T
    for name in tensors:
        if name.endswith(("attn_norm.weight", "mlp_norm.weight", "model.norm.weight")):
            tensors[name] = torch.ones_like(tensors[name])
    out.mkdir()
    tensors_out = {name: weight.float().contiguous() for name, weight in tensors.items()}
    save_file(tensors_out, out / "model.safetensors", metadata={"format": "pt"})
    config = dict(model.config) | {"tie_word_embeddings": False}
    (out / "config.json").write_text(json.dumps(config))
    for path in model.path.glob("tokenizer*"):
        (out / path.name).write_bytes(path.read_bytes())
    return st.open(out)


@torch.inference_mode()
def apart(model: LiveModel, other_model: LiveModel, ids: Tensor) -> tuple[float, float]:
    """The largest difference between logits, and their standard deviation."""
    left, right = model.logits(ids).double(), other_model.logits(ids).double()
    return float((left - right).abs().max()), float(left.std())


def shared_fraction(plan: st.Plan, other_plan: st.Plan) -> float:
    """The fraction of the kept channels that both plans keep."""
    shared = total = 0
    for layer, kept in plan.kept.items():
        for channels, other_channels in zip(
            kept.tolist(), other_plan.kept[layer].tolist(), strict=True
        ):
            shared, total = shared + len({*channels} & {*other_channels}), total + len(channels)
    return shared / total


def measure(model: st.Checkpoint, options: argparse.Namespace, sample: int, ids: Tensor) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        rotated_model = rotated(model, sample, folder / "turned")
        statistics_original = statistics(model, options, 0, list(METHODS))
        statistics_rotated = statistics(rotated_model, options, 0, list(METHODS))
        row: Row = {"agree": {}}
        for method in METHODS:
            plan = st.select(
                model, method, "50%x100%", statistics=statistics_original, progress=False
            )
            rotated_plan = st.select(
                rotated_model, method, "50%x100%", statistics=statistics_rotated, progress=False
            )
            row["agree"][method] = round(shared_fraction(plan, rotated_plan), 4)
        small = st.prune(model, plan, folder / "small")
        rotated_small = rotated(small, sample, folder / "turned-small")
        live = load_live(small)
        row["rotated cut"], row["logits"] = apart(live, load_live(rotated_small), ids)
        row["rotated original"], _ = apart(load_live(model), load_live(rotated_model), ids)
        row["cut alone"], _ = apart(live, load_live(model), ids)
    return row


def main() -> None:
    arguments = parser(__doc__, "rotation.jsonl", "random rotations")
    options = parsed(arguments)
    rows, model = Rows(options.results), st.open(options.model)
    ids = ModelScorer(model, options).windows[:4]
    cases: list[Row] = [{"model": options.name, "sample": i} for i in range(options.samples)]
    for row in rows.missing(cases):
        rows.add(row | measure(model, options, row["sample"], ids))


if __name__ == "__main__":
    main()
