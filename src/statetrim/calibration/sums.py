"""Running sums of what the hooks report: the only thing calibration keeps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.statistics import TEXT, LayerStatistics, Statistics
from ..geometry import ChannelRows
from ..runtime.kernel_hooks import L2_EPS, KernelCall, MixerInput, Readout
from ..storage.checkpoint import Checkpoint
from .pair_hooks import Pair


class Sums:
    """Float64 sums for every linear-attention layer, updated call by call.

    They stay on the device of their layer, and a layer's go to the host together: a copy for each
    sum and batch would make the device wait as often.
    """

    def __init__(self, model: Checkpoint, parts: Sequence[str]) -> None:
        self.model, self.parts, self.tokens = model, parts, 0
        self._sums: dict[int, dict[str, Tensor]] = {i: {} for i in model.geometry.layers}

    def on_call(self, call: KernelCall) -> None:
        for side, x in (("query", call.query), ("key", call.key)):
            if f"{side}_gram" in self.parts or f"{side}_unit_gram" in self.parts:
                rows = x.flatten(0, 1).transpose(0, 1).double()  # [heads, tokens, channels]
                self._add(call.layer, f"{side}_gram", _gram(rows))
                if self.model.family.normalizes_keys:
                    rows = rows * (rows.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()
                self._add(call.layer, f"{side}_unit_gram", _gram(rows))
        if "output_square" in self.parts:
            square = call.output.flatten(0, -3).double().square().mean(dim=-1).sum(dim=0)
            self._add(call.layer, "output_square", square)

    def on_input(self, seen: MixerInput) -> None:
        self._add(seen.layer, "input_square", seen.hidden.flatten(0, -2).double().square().sum(0))

    def on_readout(self, seen: Readout) -> None:
        if "readout_gram" in self.parts:
            values = seen.values.flatten(0, -2).double()
            for claim in self.model.channels(seen.layer):
                if claim.role == "o_proj":
                    rows = values[:, claim.rows.to(values.device)].transpose(0, 1)
                    self._add(seen.layer, "readout_gram", _gram(rows))
        if "readout_moment" in self.parts:
            self.on_pair(Pair(seen.layer, seen.output, seen.values))

    def on_pair(self, pair: Pair) -> None:
        """What a refit needs; where whole heads go, of the model before the cut alone."""
        values = pair.values.flatten(0, -2).double()
        target = pair.target.flatten(0, -2).double()
        self._add(pair.layer, "readout_moment", values.mT @ values)
        self._add(pair.layer, "target_moment", target.mT @ values)
        self._add(pair.layer, "target_square", target.square().sum().reshape(1))

    def on_gradients(self, mixers: Mapping[int, nn.Module]) -> None:
        """Take the gradients of the projection weights, by the family's row tables."""
        for layer, mixer in mixers.items():
            claims = self.model.channels(layer)
            for side, role in (("query", "q_proj"), ("key", "k_proj")):
                copies = [_gradient(mixer, claim) for claim in claims if claim.role == role]
                self._add(layer, f"{side}_gradient", torch.stack(copies, dim=2))
            for claim in claims:
                if claim.role in ("q_proj", "k_proj"):
                    mixer.get_parameter(claim.tensor).grad = None

    def _add(self, layer: int, part: str, value: Tensor) -> None:
        if part not in self.parts:
            return
        held = self._sums[layer].get(part)
        if held is None:
            self._sums[layer][part] = value
        elif held.device == value.device:
            held += value
        else:  # from an earlier run
            self._sums[layer][part] = held.to(value.device).add_(value)

    def settle(self, layer: int) -> None:
        """Bring a layer's sums to the host."""
        self._sums[layer] = _on_host(self._sums[layer])

    @property
    def tensors(self) -> list[Tensor]:
        """All sums, in an order that every process shares, on the host."""
        for layer in self._sums:
            self.settle(layer)
        return [self._sums[i][part] for i in sorted(self._sums) for part in sorted(self._sums[i])]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for sums in self._sums.values() for tensor in sums.values())

    @property
    def layers(self) -> dict[int, LayerStatistics]:
        return {
            layer: LayerStatistics(self.tokens, **_on_host(sums))
            for layer, sums in self._sums.items()
        }

    def restore(self, saved: Mapping[int, LayerStatistics]) -> None:
        for layer, statistics in saved.items():
            self.tokens = statistics.tokens
            for part in self.parts:
                value = getattr(statistics, part)
                if value is not None:
                    self._sums[layer][part] = value


def _on_host(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In one copy."""
    away = {part: value for part, value in sums.items() if value.device.type != "cpu"}
    if not away:
        return dict(sums)
    flat = torch.cat([value.flatten() for value in away.values()]).cpu()
    pieces = torch.split(flat, [value.numel() for value in away.values()])
    here = {
        part: piece.reshape(value.shape).clone()
        for (part, value), piece in zip(away.items(), pieces, strict=True)
    }
    return {**sums, **here}


def statistics_of(sources: Mapping[str, Sums], lineage: Mapping[str, Any]) -> Statistics:
    """Every source's sums, the text's first."""
    found = {name: sums.layers for name, sums in sources.items()}
    return Statistics(found.pop(TEXT), lineage, found)


def _gram(rows: Tensor) -> Tensor:
    """[heads, tokens, channels] -> [heads, channels, channels]."""
    return rows.mT @ rows


def _gradient(mixer: nn.Module, claim: ChannelRows) -> Tensor:
    """[heads, channels, hidden] of one projection, from the weight's accumulated gradient."""
    gradient = mixer.get_parameter(claim.tensor).grad
    assert gradient is not None, f"{claim.tensor} took no part in the loss"
    return gradient[claim.rows.to(gradient.device)].double()
