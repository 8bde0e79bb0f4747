"""Checkpoint -> Plan: ask a method, layer by layer, which channels stay."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .checkpoint import Checkpoint, with_weights
from .errors import StatetrimError
from .family import resized_config
from .geometry import Geometry, resolve_keep
from .method import Evidence, Method, Select
from .methods import find_method
from .plan import Plan
from .statistics import Statistics
from .version import __version__


def select(
    model: Checkpoint,
    method: str | Select,
    keep: int | float | str,
    *,
    seed: int = 0,
    statistics: Statistics | None = None,
    progress: Any = iter,
    **options: Any,
) -> Plan:
    """Choose the channels that stay: `keep` per head, or that fraction of them.

    `method` is a name, a Python file or a function; `options` are the method's own. `statistics`
    come from `calibrate`, for methods that need them. `progress` wraps the iteration over layers.
    """
    chosen = find_method(method)
    _check_options(chosen, options)
    geometry = with_weights(model).geometry
    _check_statistics(chosen, statistics, model)
    width = resolve_keep(keep, geometry.head_k_dim)
    resized_config(model.family, model.config, geometry.resized(width))
    layers: Iterable[int] = progress(geometry.layers)
    kept, notes = {}, {}
    for layer in layers:
        heard = statistics.layers[layer] if statistics else None
        query, key = model.projections(layer)
        if not bool(query.isfinite().all() and key.isfinite().all()):
            raise StatetrimError(f"layer {layer} has query or key weights that are not finite")
        evidence = Evidence(query, key, _generator(seed, layer), heard)
        _check_heard(evidence, chosen, layer)
        kept[layer] = _select_layer(model.geometry, evidence, chosen, width, options)
        if evidence.notes:
            notes[str(layer)] = evidence.notes
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
            "statistics": dict(statistics.lineage) if statistics and chosen.needs else None,
        },
        notes=notes,
    )


def _select_layer(
    geometry: Geometry, evidence: Evidence, method: Method, keep: int, options: dict[str, Any]
) -> Tensor:
    try:
        kept = method.select(evidence, keep, **options)
    except (ValueError, TypeError) as error:  # an option of the wrong kind, or numbers beyond use
        raise StatetrimError(f"method {method.name!r} cannot go on: {error}") from error
    heads, channels = geometry.num_k_heads, geometry.head_k_dim
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


def _check_statistics(method: Method, statistics: Statistics | None, model: Checkpoint) -> None:
    if not method.needs:
        return
    have = statistics.parts if statistics else set()
    lacking = [part for part in method.needs if part not in have]
    if statistics is None or lacking:
        raise StatetrimError(
            f"method {method.name!r} needs {' and '.join(lacking)} from calibration; "
            f"run: statetrim calibrate MODEL --for {method.name} --text SOURCE -o FILE"
        )
    if statistics.lineage.get("source") != model.digest:
        raise StatetrimError("the statistics were made with another model; calibrate this one")
    if set(statistics.layers) != set(model.geometry.layers):
        raise StatetrimError("the statistics do not cover the model's linear-attention layers")


def _check_heard(evidence: Evidence, method: Method, layer: int) -> None:
    """Statistics may be a stranger's: each sum must be there, finite, of the weights' shape."""
    heads, channels, _, hidden = evidence.query_weight.shape
    for part in method.needs:
        expected = {
            "input_square": (hidden,),
            "query_gradient": tuple(evidence.query_weight.shape),
            "key_gradient": tuple(evidence.key_weight.shape),
            "output_square": None,
        }.get(part, (heads, channels, channels))
        value = getattr(evidence.statistics, part)
        fits = value is not None and (expected is None or tuple(value.shape) == expected)
        if not fits or not bool(value.isfinite().all()):
            raise StatetrimError(
                f"the statistics of layer {layer} have no usable {part!r}; calibrate again"
            )


def _check_options(method: Method, options: dict[str, Any]) -> None:
    unknown = sorted(set(options) - set(method.options))
    if unknown:
        known = ", ".join(method.options) or "none"
        raise StatetrimError(
            f"method {method.name!r} has no option {unknown[0]!r}; it has: {known}"
        )
