"""Checkpoint -> Plan: ask a method, layer by layer, which channels stay."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .checkpoint import Checkpoint, with_weights
from .errors import StatetrimError
from .family import resized_config
from .geometry import resolve_keep
from .method import Evidence, Method, Select
from .methods import find_method
from .plan import Plan
from .version import __version__


def select(
    model: Checkpoint,
    method: str | Select,
    keep: int | float | str,
    *,
    seed: int = 0,
    progress: Any = iter,
    **options: Any,
) -> Plan:
    """Choose the channels that stay: `keep` per head, or that fraction of them.

    `method` is a name, a Python file or a function; `options` are the method's own. `progress`
    wraps the iteration over layers.
    """
    chosen = find_method(method)
    _check_options(chosen, options)
    geometry = with_weights(model).geometry
    width = resolve_keep(keep, geometry.head_k_dim)
    resized_config(model.family, model.config, geometry.resized(width))
    layers: Iterable[int] = progress(geometry.layers)
    kept = {layer: _select_layer(model, layer, chosen, width, seed, options) for layer in layers}
    return Plan(
        kept=kept,
        requested=str(keep),
        method=chosen.name,
        seed=seed,
        options=dict(chosen.options) | options,
        lineage={
            "statetrim": __version__,
            "model_type": model.config.get("model_type"),
            "source": model.digest,
        },
    )


def _select_layer(
    model: Checkpoint, layer: int, method: Method, keep: int, seed: int, options: dict[str, Any]
) -> Tensor:
    query, key = model.projections(layer)
    if not bool(query.isfinite().all() and key.isfinite().all()):
        raise StatetrimError(f"layer {layer} has query or key weights that are not finite numbers")
    kept = method.select(Evidence(query, key, _generator(seed, layer)), keep, **options)
    heads, channels = model.geometry.num_k_heads, model.geometry.head_k_dim
    if (
        not isinstance(kept, Tensor)
        or kept.dtype != torch.int64
        or tuple(kept.shape) != (heads, keep)
        or int(kept.min()) < 0
        or int(kept.max()) >= channels
        or bool((kept.diff(dim=1) <= 0).any())
    ):
        raise StatetrimError(
            f"method {method.name!r} must return int64 [{heads}, {keep}], ascending channels below "
            f"{channels} in every head"
        )
    return kept


def _generator(seed: int, layer: int) -> torch.Generator:
    """Seeded by model seed and layer, so that layers may be visited in any order."""
    digest = hashlib.sha256(f"{seed} {layer}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _check_options(method: Method, options: dict[str, Any]) -> None:
    unknown = sorted(set(options) - set(method.options))
    if unknown:
        known = ", ".join(method.options) or "none"
        raise StatetrimError(
            f"method {method.name!r} has no option {unknown[0]!r}; it has: {known}"
        )
