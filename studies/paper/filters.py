"""Convolution filters of queries, keys and values, head by head.

Figures `fig:filters_dn` and `fig:filters_dn2`.

    python studies/paper/filters.py OUT.png MODEL [MODEL ...]

A row of pictures per model, a column per layer and side (q, k, v); lines separate heads. Models
have fla's tensor names; train ones with shared filters with
`studies/train_tiny.py --set shared_filters='"head"'`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
from torch import Tensor

import statetrim as st

SIDES = ("q", "k", "v")


def filters(model: st.Checkpoint, layer: int, side: str) -> Tensor:
    """Convolution filters of one layer and side, [channels, filter width]."""
    return model.tensor(f"model.layers.{layer}.attn.{side}_conv1d.weight").squeeze(1).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", help="directories or hub ids")
    parser.add_argument("--layers", type=int, default=2, help="the first ones")
    options = parser.parse_args()
    plt.rcParams["figure.constrained_layout.use"] = True
    columns = options.layers * len(SIDES)
    size = (1.3 * columns + 1, 3.2 * len(options.models))
    figure, axes = plt.subplots(len(options.models), columns, figsize=size, squeeze=False)
    for line, name in zip(axes, options.models, strict=True):
        model = st.open(name)
        heads = model.geometry.num_k_heads
        for place, cell in enumerate(line):
            layer, side = model.geometry.layers[place // 3], SIDES[place % 3]
            shown = filters(model, layer, side)
            most = float(shown.abs().max())
            cell.imshow(
                shown.numpy(),
                aspect="auto",
                interpolation="nearest",
                cmap="RdBu_r",
                vmin=-most,
                vmax=most,
            )
            for head in range(1, heads):
                cell.axhline(head * len(shown) / heads - 0.5, color="black", linewidth=1)
            cell.set(title=f"layer {layer}, {side}", xticks=[], yticks=[])
        line[0].set_ylabel(Path(name).name)
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
