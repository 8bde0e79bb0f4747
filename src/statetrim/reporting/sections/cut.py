"""Which channels or heads the plan keeps, by layer."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ...geometry import Axis
from ...maths.formatting import evenly_spaced
from ...storage.quantized.find import describe_schemes
from ..charts import channel_map
from ..document import Block, Gallery, Image, Table, Text
from ..findings import Findings

MAX_LAYER_PICTURES = 64
MAX_PICTURED_HEADS, MAX_PICTURED_CHANNELS = 64, 1024
MAX_LISTED_HEADS = 64
MAX_LISTED_WEIGHTS = 64


def blocks(findings: Findings) -> Iterator[Block]:
    """The plan's settings, then pictures and lists of what it keeps."""
    plan = findings.plan
    yield from _quantized_blocks(findings)
    yield Table(("", "the plan"), plan.table().rows)
    if plan.kept_heads is not None:
        rows = []
        for layer, table in plan.kept_heads.items():
            rows.append((str(layer), _ranges_text(table.flatten().tolist())))
        caption = "Kept value heads in numbers; each keeps all its channels"
        yield Table(("layer", "kept value heads"), rows, caption, folded=True)
        return
    original = findings.original and findings.original.geometry
    kept_by_axis: list[tuple[Axis, Mapping[int, Tensor]]] = []
    if plan.method != "none":  # otherwise only values were pruned
        kept_by_axis.append(("key", plan.kept))
    if plan.kept_values is not None:
        kept_by_axis.append(("value", plan.kept_values))
    for axis, kept in kept_by_axis:
        least_width = max(int(table.max()) for table in kept.values()) + 1
        yield from _channel_blocks(axis, kept, original.width(axis) if original else least_width)


def _quantized_blocks(findings: Findings) -> Iterator[Block]:
    """How the cut's weights are stored, and what was quantised again; nothing if none is."""
    cut = findings.cut
    if not cut.quantized:
        return
    yield Text(
        f"Quantised weights of the cut: {describe_schemes(cut.quantized)}. Those that it did not "
        f"have to change are the original's, code by code."
    )
    errors = findings.prune.requantized if findings.prune else {}
    if errors:
        worst = sorted(errors.items(), key=lambda item: -item[1])[:MAX_LISTED_WEIGHTS]
        rows = [(name, f"{100 * error:.3g} %") for name, error in worst]
        caption = (
            f"{len(errors)} weights were quantised again for the cut; relative errors, the largest "
            f"first"
        )
        yield Table(("weight", "error"), rows, caption, folded=True)


def _channel_blocks(axis: Axis, kept: Mapping[int, Tensor], channels: int) -> Iterator[Block]:
    """Pictures of `kept`, layer -> kept channels [heads, keep] out of `channels`, then a table.

    No pictures above MAX_PICTURED_CHANNELS; above MAX_LISTED_HEADS a sentence instead of the table.
    """
    heads, keep = next(iter(kept.values())).shape
    name = "key/query" if axis == "key" else "value"
    layers = evenly_spaced(list(kept), MAX_LAYER_PICTURES)
    if channels <= MAX_PICTURED_CHANNELS:
        subset_text = "" if len(layers) == len(kept) else f" ({len(layers)} of {len(kept)} layers)"
        images = []
        for layer in layers:
            images.append((f"layer {layer}", _layer_picture(kept[layer], layer, name, channels)))
        yield Gallery(
            images,
            f"Kept {name} channels{subset_text}: one band per head, from channel 0 on the left to "
            f"{channels - 1} on the right; dark channels are kept ({keep} in every head), gaps "
            f"were removed. Each head has its own choice, so positions do not compare.",
        )
    if heads * len(kept) <= MAX_LISTED_HEADS:
        rows = []
        for layer, table in kept.items():
            for head, row in enumerate(table.tolist()):
                rows.append((str(layer), str(head), _ranges_text(row)))
        caption = f"Kept {name} channels in numbers"
        yield Table(("layer", "head", "kept channels"), rows, caption, folded=True)
    else:
        yield Text("The plan lists all kept channels.")


def _layer_picture(kept: Tensor, layer: int, name: str, channels: int) -> Image:
    """A map of the kept channels, `kept` [heads, keep]."""
    heads = kept[:MAX_PICTURED_HEADS]
    channels = max(channels, int(heads.max()) + 1)  # the given original may be another model
    mask = torch.zeros(len(heads), channels, dtype=torch.bool).scatter_(1, heads, True)
    subset_text = "" if len(heads) == len(kept) else f" (the first {len(heads)})"
    alt = f"Layer {layer}: kept {name} channels of {len(kept)} heads{subset_text}"
    return Image(channel_map(mask), alt)


def _ranges_text(channels: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    runs: list[list[int]] = []
    for channel in channels:
        if runs and channel == runs[-1][1] + 1:
            runs[-1][1] = channel
        else:
            runs.append([channel, channel])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)
