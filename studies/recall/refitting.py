"""The refit of a masked model: moments by source, then least squares for any mix of sources."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from masking import Cut, Masked
from sources import Source


@dataclass
class Moments:
    """Sums of one layer on one source; a: masked read-out, y: output of the original layer."""

    gram: Any  # [n, n]: aa'
    target: Any  # [hidden, n]: ya'
    square: float  # |y|^2
    tokens: int = 0


class Replay:
    """Inputs and outputs of the original's mixers on one source, recorded once."""

    def __init__(self, model: Masked, source: Source) -> None:
        self.model = model
        self.calls: list[tuple[int, Any, Any, Tensor]] = []
        handles = [
            module.register_forward_hook(functools.partial(self._keep, layer), with_kwargs=True)
            for layer, module in model.mixers.items()
        ]
        with torch.inference_mode():
            for batch in source.batches(16):
                model.live.hidden_states(batch)
        for handle in handles:
            handle.remove()

    def _keep(self, layer: int, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        self.calls.append((layer, args, kwargs, output.flatten(0, -2)))

    def moments(self, cut: Cut) -> dict[int, Moments]:
        """Moments of the masked layers on the recorded inputs; output projections have no bias."""
        by_layer: dict[int, Moments] = {}
        seen: dict[str, Tensor] = {}
        self.model.on_readout = lambda layer, values: seen.update(values=values)
        with torch.inference_mode(), self.model.cutting(cut):
            for layer, args, kwargs, output in self.calls:
                if layer in cut.keys or layer in cut.values:
                    self.model.mixers[layer](*args, **kwargs)
                    values = seen.pop("values").flatten(0, -2).double()
                    target = output.double()
                    moments = by_layer.setdefault(layer, Moments(0.0, 0.0, 0.0))
                    moments.gram = moments.gram + values.mT @ values
                    moments.target = moments.target + target.mT @ values
                    moments.square += float(target.square().sum())
                    moments.tokens += len(values)
        self.model.on_readout = None
        return by_layer


def refit(
    by_source: Mapping[str, Mapping[int, Moments]], shares: Mapping[str, float], rule: str = "norm"
) -> dict[int, Tensor]:
    """Output projections [hidden, n] by layer, fitted to the sources weighted by `shares`.

    `rule` "norm" divides each source's error by its |y|^2, any other by its tokens.
    """
    layers = next(iter(by_source.values())).keys()
    return {layer: _fitted([by_source[n][layer] for n in shares], shares, rule) for layer in layers}


def _fitted(moments: list[Moments], shares: Mapping[str, float], rule: str) -> Tensor:
    gram: Any = 0
    target: Any = 0
    for source_moments, share in zip(moments, shares.values(), strict=True):
        scale = share / (source_moments.square if rule == "norm" else source_moments.tokens)
        gram, target = gram + scale * source_moments.gram, target + scale * source_moments.target
    kept = gram.diagonal() > 0
    gram, target = gram[kept][:, kept], target[:, kept]
    damped = gram + 1e-8 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weight = torch.zeros(len(target), len(kept), dtype=gram.dtype)
    weight[:, kept] = torch.linalg.solve(damped, target.mT).mT
    return weight


def error(weight: Tensor, moments: Moments) -> float:
    """The relative residual sum of squares of the layer's output."""
    weight = weight.double()
    residual = (
        moments.square
        - 2 * (weight * moments.target).sum()
        + (weight * (weight @ moments.gram)).sum()
    )
    return float(residual) / moments.square
