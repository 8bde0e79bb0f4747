"""Statistics by source, rules to mix them, and the selection of channels from a mix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from masking import Masked
from sources import Source
from statetrim import Checkpoint
from statetrim.artifacts.statistics import LayerStatistics, Statistics, mix_statistics
from statetrim.calibration.calibrate import _enable_projection_gradients
from statetrim.calibration.hooks import calibration_hooks
from statetrim.calibration.sums import Sums
from statetrim.methods import find_method
from statetrim.methods.contract import Evidence, ValueEvidence, top
from statetrim.runtime.live import LiveModel

FORWARD = ("query_gram", "key_gram", "query_unit_gram", "key_unit_gram", "output_square")
Shares = Mapping[str, float]


class SourceStatistics:
    """Sums, gradients and Fisher scores of one source by layer, cached in a file."""

    def __init__(
        self, model: Checkpoint, masked: Masked, source: Source, cache: Path, backward: bool
    ) -> None:
        if cache.exists():
            stored = torch.load(cache, weights_only=True)
        else:
            stored = _collect(model, masked, source, backward)
            torch.save(stored, cache)
        self.sums, self.gradients = (
            {i: LayerStatistics(**parts) for i, parts in stored[name].items()}
            for name in ("sums", "gradients")
        )
        self.fisher: dict[int, Tensor] = stored["fisher"]


def _collect(model: Checkpoint, masked: Masked, source: Source, backward: bool) -> dict[str, Any]:
    parts = [*FORWARD, "readout_gram"]
    sums, live = Sums(model, parts), masked.live
    with calibration_hooks([live], sums), torch.inference_mode():
        for batch in source.batches():
            live.hidden_states(batch)
            sums.tokens += batch.numel()
    if not backward:
        return {"sums": _as_dicts(sums.layer_statistics), "gradients": {}, "fisher": {}}
    half = Source(
        source.ids[: len(source.ids) // 2], source.answer_positions
    )  # backward passes take long
    return {
        "sums": _as_dicts(sums.layer_statistics),
        "gradients": _as_dicts(_gradients(model, masked, half)),
        "fisher": _fisher(model, masked, half),
    }


def _as_dicts(layers: Mapping[int, LayerStatistics]) -> dict[int, dict[str, Any]]:
    return {i: {k: v for k, v in vars(s).items() if v is not None} for i, s in layers.items()}


def _loss(live: LiveModel, batch: Tensor, positions: Tensor | None) -> Any:
    """Next-token loss summed over `positions`; None: over all."""
    logits = live.logits(batch).float()
    answered = torch.arange(batch.shape[1] - 1) if positions is None else positions
    logits, targets = logits[:, answered], batch[:, answered + 1]
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _gradients(model: Checkpoint, masked: Masked, source: Source) -> Mapping[int, LayerStatistics]:
    sums = Sums(model, ["query_gradient", "key_gradient"])
    _enable_projection_gradients(masked.live)
    for batch in source.batches():
        _loss(masked.live, batch, source.answer_positions).backward()
        sums.on_gradients(masked.mixers)
        sums.tokens += batch.numel()
    masked.live.module.requires_grad_(False)
    return sums.layer_statistics


def _fisher(model: Checkpoint, masked: Masked, source: Source) -> dict[int, Tensor]:
    """[heads, channels]: squared loss gradients of a gate on q and k, summed over sequences."""
    geometry, fisher = model.geometry, dict[int, Tensor]()
    for batch in source.batches():
        shape = (len(batch), geometry.num_k_heads, geometry.head_k_dim)
        masked.gates = {i: torch.ones(shape, requires_grad=True) for i in geometry.layers}
        _loss(masked.live, batch, source.answer_positions).backward()
        for i, gate in masked.gates.items():
            assert gate.grad is not None
            fisher[i] = fisher.get(i, 0) + gate.grad.double().square().sum(0)
    masked.gates = {}
    return fisher


def choose_keys(
    model: Checkpoint,
    by_source: Mapping[str, SourceStatistics],
    method: str,
    rule: str,
    shares: Shares,
    keep: int,
) -> dict[int, Tensor]:
    """The kept key channels by layer, from a mix of sources.

    `rule` says what is mixed: "scores" (normalised to a sum of 1 per head and source), "grams"
    (`mix_statistics`) or "pooled" (sums per token). DRRQR has no scores and uses "grams" instead.
    """
    chosen = {}
    for layer in model.geometry.layers:
        if rule == "scores" and method != "drrqr":
            total: Any = 0.0
            for name, share in shares.items():
                scores = _scores(model, by_source[name], method, layer)
                total = total + share * scores / scores.sum(-1, keepdim=True)
            chosen[layer] = top(total, keep)
        else:
            sums = _mix_layer(by_source, rule, shares, layer)
            evidence = Evidence(*model.query_key_weights(layer), torch.Generator(), sums)
            chosen[layer] = find_method(method).select(evidence, keep)
    return chosen


def choose_values(
    model: Checkpoint,
    by_source: Mapping[str, SourceStatistics],
    method: str,
    rule: str,
    shares: Shares,
    keep: int,
) -> dict[int, Tensor]:
    """The kept value channels by layer; the rule "scores" mixes Gram matrices of trace 1."""
    chosen = {}
    for layer in model.geometry.layers:
        sums = _mix_layer(by_source, rule, shares, layer)
        evidence = ValueEvidence(*model.value_output_weights(layer), torch.Generator(), sums)
        chosen[layer] = find_method(method).select(evidence, keep)
    return chosen


def _mix_layer(
    by_source: Mapping[str, SourceStatistics], rule: str, shares: Shares, layer: int
) -> LayerStatistics:
    if rule != "pooled":
        sources = {name: {layer: by_source[name].sums[layer]} for name in shares}
        text = sources.pop("text", None) or next(iter(sources.values()))
        generated_shares = {name: share for name, share in shares.items() if name != "text"}
        return mix_statistics(Statistics(text, {}, sources), generated_shares).layers[layer]
    pooled: dict[str, Any] = {}
    for sum_name in (*FORWARD, "readout_gram"):
        weighted = ((by_source[name].sums[layer], share) for name, share in shares.items())
        pooled[sum_name] = sum(
            share * getattr(sums, sum_name) / sums.tokens for sums, share in weighted
        )
    return LayerStatistics(1, **pooled)


def _scores(model: Checkpoint, statistics: SourceStatistics, method: str, layer: int) -> Tensor:
    sums = statistics.sums[layer]
    assert sums.query_unit_gram is not None and sums.key_unit_gram is not None
    query = sums.query_unit_gram.diagonal(dim1=-2, dim2=-1)
    key = sums.key_unit_gram.diagonal(dim1=-2, dim2=-1)
    if method == "product":
        return query * key
    if method == "energy":
        return query + key
    if method == "fisher":
        return statistics.fisher[layer]
    if method == "grad":
        evidence, slopes = (
            Evidence(*model.query_key_weights(layer), torch.Generator()),
            statistics.gradients,
        )
        gradients = slopes[layer]
        assert gradients.query_gradient is not None and gradients.key_gradient is not None
        q = (evidence.query_weight * gradients.query_gradient).abs().sum((-2, -1))
        return q + (evidence.key_weight * gradients.key_gradient).abs().sum((-2, -1))
    raise ValueError(method)
