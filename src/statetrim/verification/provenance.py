"""Is a cut what its own plan makes of the original? Its config, and the tensors that were cut.

No model runs for this. What a refit or a recovery has trained since cannot be compared byte for
byte; there most rows must still be nearest to the rows they came from.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import Plan
from ..families.contract import resized_config
from ..geometry import ChannelRows
from ..storage.channel_rows import LayerRows
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.json_file import read_json
from ..storage.output import ARTIFACTS, MAX_RECORD_BYTES

PLAN_FILE = f"{ARTIFACTS}/plan.json"
_MIN_NEAREST = 0.5  # the part of a trained tensor's rows that must be nearest to their origin


def load_carried_plan(cut: Checkpoint) -> Plan | None:
    """The plan a checkpoint was cut by, which it carries; None where it has none."""
    return Plan.load(path_inside(cut.path, PLAN_FILE)) if (cut.path / PLAN_FILE).exists() else None


def config_faults(original: Checkpoint, cut: Checkpoint, plan: Plan) -> Iterator[str]:
    """What differs between the cut's config and the original's, resized by the plan."""
    expected = resized_config(
        original.family, original.config, plan.pruned_geometry(original.geometry)
    )
    for name, needed, actual in _config_differences(expected, cut.config):
        yield f"config field {name!r} is {str(actual)[:40]}, and this cut needs {str(needed)[:40]}"


def _config_differences(
    expected: Any, actual: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}):
            full_name = f"{name}.{key}" if name else key
            yield from _config_differences(expected.get(key), actual.get(key), full_name)
    elif expected != actual:
        yield name, expected, actual


def weight_faults(original: Checkpoint, cut: Checkpoint, plan: Plan) -> Iterator[str]:
    """Cut tensors that hold other rows or columns than the plan keeps."""
    trained, shared_norms = (
        _trained_tensors(cut),
        _shared_norms(original) if plan.kept_values else {},
    )
    original_claims, cut_claims = (
        model.channel_rows if plan.kept_heads is None else model.head_rows
        for model in (original, cut)
    )
    for name, owner in original_claims.items():
        expected = _expected_tensor(original, name, owner, plan, shared_norms)
        actual, claims = cut.tensor(name), cut_claims[name].channel_rows
        if name in trained:
            moved_roles = [
                claim.role
                for claim in claims
                if actual.dim() > 1 and _nearest_fraction(expected, actual, claim) < _MIN_NEAREST
            ]
            if moved_roles:
                yield (
                    f"layer {owner.layer}: {name} was trained after the cut, but most of its "
                    f"{moved_roles[0]} rows are nearer to others of the original than to their own"
                )
        elif not torch.equal(expected, actual):
            dim = claims[0].dim
            matching = (expected == actual).movedim(dim, 0).reshape(expected.shape[dim], -1).all(1)
            unit = "columns" if dim else "rows"
            yield (
                f"layer {owner.layer}: {int((~matching).sum())} of {len(matching)} {unit} of {name} are "
                f"not those that the plan keeps of the original"
            )


def _expected_tensor(
    original: Checkpoint, name: str, owner: LayerRows, plan: Plan, shared_norms: dict[int, str]
) -> Tensor:
    """The tensor as the cut alone leaves it; a shared norm lies in the output projection then."""
    tensor, role = original.tensor(name), owner.channel_rows[0].role
    if role == "o_proj" and owner.layer in shared_norms:
        factors = torch.ones(owner.channel_rows[0].size, dtype=torch.float64)
        for claim in owner.channel_rows:
            factors[claim.rows] = original.tensor(shared_norms[owner.layer]).double()
        tensor = (tensor.double() * factors).to(tensor.dtype)
    for dim, mask in plan.kept_masks(owner.layer, owner.channel_rows, original.geometry).items():
        tensor = tensor.index_select(dim, mask.nonzero().squeeze(1))
    return torch.ones_like(tensor) if role == "shared_norm" and shared_norms else tensor


def _shared_norms(model: Checkpoint) -> dict[int, str]:
    """Layer -> the norm whose weight all heads share."""
    return {
        owner.layer: name
        for name, owner in model.channel_rows.items()
        if owner.channel_rows[0].role == "shared_norm"
    }


def _nearest_fraction(expected: Tensor, actual: Tensor, claim: ChannelRows) -> float:
    """The part of a claim's rows that are nearest, within their head, to what they came from."""
    original_rows, actual_rows = (
        tensor.movedim(claim.dim, 0)[claim.rows].double().reshape(*claim.rows.shape, -1)
        for tensor in (expected, actual)
    )  # [heads, channels, entries]
    nearest = torch.cdist(actual_rows, original_rows).argmin(-1)
    return float((nearest == torch.arange(nearest.shape[1])).double().mean())


def _trained_tensors(cut: Checkpoint) -> set[str]:
    """Tensors that were trained or refitted after the cut, by the checkpoint's own records."""
    names: set[str] = set()
    folder = cut.path / ARTIFACTS
    for path in sorted(folder.iterdir()):
        name = path.name.replace("source_", "")
        if name not in ("recover.json", "refit.json"):
            continue
        record = read_json(path_inside(cut.path, f"{ARTIFACTS}/{path.name}"), MAX_RECORD_BYTES)
        if name == "recover.json":
            names.update(str(tensor_name) for tensor_name in record.get("trained_tensors") or [])
        else:
            claims = cut.channel_rows.items()
            names.update(
                tensor_name
                for tensor_name, owner in claims
                if owner.channel_rows[0].role == "o_proj"
            )
    return names
