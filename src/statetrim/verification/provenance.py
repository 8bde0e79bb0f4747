"""Check without running a model that a cut is the original pruned by the cut's plan.

Config fields and pruned tensors must be equal to what pruning gives, also those that it quantises
again. Tensors that a refit or a recovery trained cannot be compared byte for byte; most of their
rows must still be nearest to the rows that they were pruned from.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import Plan
from ..artifacts.steps import RecoverRecord
from ..families.contract import resized_config
from ..geometry import ChannelRows, Role
from ..storage.channel_rows import LayerRows, names_by_layer
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.output import ARTIFACTS
from ..storage.quantized.rewrite import cut_values
from ..storage.safetensors_file import TensorEdit

_MIN_NEAREST = 0.5  # share of a trained tensor's rows that must be nearest to their origin


def config_faults(original: Checkpoint, cut: Checkpoint, plan: Plan) -> Iterator[str]:
    """A sentence for each field of the cut's config that differs from what pruning gives.

    Raises StatetrimError if the plan does not fit the original.
    """
    geometry = plan.pruned_geometry(original.geometry)
    expected = resized_config(original.family, original.config, geometry)
    for name, needed, actual in _config_differences(expected, cut.config):
        yield f"config field {name!r} is {str(actual)[:40]}, and this cut needs {str(needed)[:40]}"


def _config_differences(
    expected: Any, actual: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Dotted name, expected and actual value of every differing field of nested dicts; an absent
    field counts as None."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}):
            full_name = f"{name}.{key}" if name else key
            yield from _config_differences(expected.get(key), actual.get(key), full_name)
    elif expected != actual:
        yield name, expected, actual


def weight_faults(original: Checkpoint, cut: Checkpoint, plan: Plan) -> Iterator[str]:
    """A sentence for each pruned tensor that holds other rows or columns than the plan keeps.

    In a tensor that was refitted or trained, at least half of the rows must be nearest to their
    own. Tensors that pruning leaves alone are not compared.
    """
    trained = _trained_tensors(cut)
    shared_norms = names_by_layer(original.channel_rows, "shared_norm") if plan.kept_values else {}
    prunes_heads = plan.kept_heads is not None
    cut_rows = cut.head_rows if prunes_heads else cut.channel_rows
    original_rows = original.head_rows if prunes_heads else original.channel_rows
    for name, layer_rows in original_rows.items():
        expected = _expected_tensor(original, name, layer_rows, plan, shared_norms)
        actual, channel_rows = cut.tensor(name), cut_rows[name].channel_rows
        if name in trained:
            role = _moved_role(expected, actual, channel_rows)
            if role is not None:
                yield (
                    f"layer {layer_rows.layer}: {name} was trained after the cut, but most of its "
                    f"{role} rows are nearer to others of the original than to their own"
                )
        elif not torch.equal(expected, actual):
            dim = channel_rows[0].dim
            equal = (expected == actual).movedim(dim, 0).reshape(expected.shape[dim], -1).all(1)
            unit = "columns" if dim else "rows"
            yield (
                f"layer {layer_rows.layer}: {int((~equal).sum())} of {len(equal)} {unit} of {name} "
                f"are not those that the plan keeps of the original"
            )


def _expected_tensor(
    original: Checkpoint, name: str, layer_rows: LayerRows, plan: Plan, shared_norms: dict[int, str]
) -> Tensor:
    """The tensor right after pruning, which multiplies a norm that heads share into o_proj and
    leaves ones in the norm; without `shared_norms`, only rows and columns are removed."""
    channel_rows = layer_rows.channel_rows
    role, factors = channel_rows[0].role, None
    masks = plan.kept_masks(layer_rows.layer, channel_rows, original.geometry)
    if role == "o_proj" and layer_rows.layer in shared_norms:
        factors = torch.ones(channel_rows[0].size, dtype=torch.float64)
        for entry in channel_rows:
            factors[entry.rows] = original.tensor(shared_norms[layer_rows.layer]).double()
    if name in original.quantized:
        return cut_values(original.quantized[name], TensorEdit(masks, factors), original)
    tensor = original.tensor(name)
    if factors is not None:
        tensor = (tensor.double() * factors).to(tensor.dtype)
    for dim, mask in masks.items():
        tensor = tensor.index_select(dim, mask.nonzero().squeeze(1))
    return torch.ones_like(tensor) if role == "shared_norm" and shared_norms else tensor


def _moved_role(
    expected: Tensor, actual: Tensor, channel_rows: Sequence[ChannelRows]
) -> Role | None:
    """The first role of a trained tensor most of whose rows are not nearest to their origin; None
    if there is none, and for vectors."""
    for entry in channel_rows if actual.dim() > 1 else ():
        distances = torch.cdist(_head_rows(actual, entry), _head_rows(expected, entry))
        nearest = distances.argmin(-1)  # [heads, channels], among the rows of the head
        if float((nearest == torch.arange(nearest.shape[1])).double().mean()) < _MIN_NEAREST:
            return entry.role
    return None


def _head_rows(tensor: Tensor, entry: ChannelRows) -> Tensor:
    """The rows of each head, float64 [heads, channels, entries]."""
    rows = tensor.movedim(entry.dim, 0)[entry.rows].double()
    return rows.reshape(*entry.rows.shape, -1)


def _trained_tensors(cut: Checkpoint) -> set[str]:
    """Names of the tensors that were trained or refitted, by the records of the cut and of the
    cuts it was made from; a refit counts for every o_proj."""
    names: set[str] = set()
    for path in sorted((cut.path / ARTIFACTS).iterdir()):
        kind = path.name.replace("source_", "")
        if kind not in ("recover.json", "refit.json"):
            continue
        if kind == "recover.json":
            record = path_inside(cut.path, f"{ARTIFACTS}/{path.name}")
            names.update(RecoverRecord.load(record).trained_tensors)
        else:
            names.update(names_by_layer(cut.channel_rows, "o_proj").values())
    return names
