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

    def __init__(self, model: Checkpoint, sum_names: Sequence[str]) -> None:
        self.model, self.sum_names, self.tokens = model, sum_names, 0
        self._sums: dict[int, dict[str, Tensor]] = {i: {} for i in model.geometry.layers}

    def on_call(self, call: KernelCall) -> None:
        for side, activations in (("query", call.query), ("key", call.key)):
            if f"{side}_gram" in self.sum_names or f"{side}_unit_gram" in self.sum_names:
                rows = (
                    activations.flatten(0, 1).transpose(0, 1).double()
                )  # [heads, tokens, channels]
                self._add(call.layer, f"{side}_gram", _gram(rows))
                if self.model.family.normalizes_keys:
                    rows = rows * (rows.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()
                self._add(call.layer, f"{side}_unit_gram", _gram(rows))
        if "output_square" in self.sum_names:
            square = call.output.flatten(0, -3).double().square().mean(dim=-1).sum(dim=0)
            self._add(call.layer, "output_square", square)

    def on_input(self, mixer_input: MixerInput) -> None:
        self._add(
            mixer_input.layer,
            "input_square",
            mixer_input.hidden.flatten(0, -2).double().square().sum(0),
        )

    def on_readout(self, readout: Readout) -> None:
        if "readout_gram" in self.sum_names:
            values = readout.values.flatten(0, -2).double()
            for channel_rows in self.model.channels(readout.layer):
                if channel_rows.role == "o_proj":
                    rows = values[:, channel_rows.rows.to(values.device)].transpose(0, 1)
                    self._add(readout.layer, "readout_gram", _gram(rows))
        if "readout_moment" in self.sum_names:
            self.on_pair(Pair(readout.layer, readout.output, readout.values))

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
            all_rows = self.model.channels(layer)
            for side, role in (("query", "q_proj"), ("key", "k_proj")):
                copies = [
                    _channel_gradient(mixer, channel_rows)
                    for channel_rows in all_rows
                    if channel_rows.role == role
                ]
                self._add(layer, f"{side}_gradient", torch.stack(copies, dim=2))
            for channel_rows in all_rows:
                if channel_rows.role in ("q_proj", "k_proj"):
                    mixer.get_parameter(channel_rows.tensor).grad = None

    def _add(self, layer: int, name: str, value: Tensor) -> None:
        if name not in self.sum_names:
            return
        total = self._sums[layer].get(name)
        if total is None:
            self._sums[layer][name] = value
        elif total.device == value.device:
            total += value
        else:  # from an earlier run
            self._sums[layer][name] = total.to(value.device).add_(value)

    def to_cpu(self, layer: int) -> None:
        """Bring a layer's sums to the host."""
        self._sums[layer] = _to_cpu(self._sums[layer])

    @property
    def tensors(self) -> list[Tensor]:
        """All sums, in an order that every process shares, on the host."""
        for layer in self._sums:
            self.to_cpu(layer)
        return [self._sums[i][name] for i in sorted(self._sums) for name in sorted(self._sums[i])]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for sums in self._sums.values() for tensor in sums.values())

    @property
    def layer_statistics(self) -> dict[int, LayerStatistics]:
        return {
            layer: LayerStatistics(self.tokens, **_to_cpu(sums))
            for layer, sums in self._sums.items()
        }

    def restore(self, saved: Mapping[int, LayerStatistics]) -> None:
        for layer, statistics in saved.items():
            self.tokens = statistics.tokens
            for name in self.sum_names:
                value = getattr(statistics, name)
                if value is not None:
                    self._sums[layer][name] = value


def _to_cpu(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In one copy."""
    on_device = {name: value for name, value in sums.items() if value.device.type != "cpu"}
    if not on_device:
        return dict(sums)
    flat = torch.cat([value.flatten() for value in on_device.values()]).cpu()
    pieces = torch.split(flat, [value.numel() for value in on_device.values()])
    on_cpu = {
        name: piece.reshape(value.shape).clone()
        for (name, value), piece in zip(on_device.items(), pieces, strict=True)
    }
    return {**sums, **on_cpu}


def to_statistics(sources: Mapping[str, Sums], lineage: Mapping[str, Any]) -> Statistics:
    """Every source's sums, the text's first."""
    by_source = {name: sums.layer_statistics for name, sums in sources.items()}
    return Statistics(by_source.pop(TEXT), lineage, by_source)


def _gram(rows: Tensor) -> Tensor:
    """[heads, tokens, channels] -> [heads, channels, channels]."""
    return rows.mT @ rows


def _channel_gradient(mixer: nn.Module, channel_rows: ChannelRows) -> Tensor:
    """[heads, channels, hidden] of one projection, from the weight's accumulated gradient."""
    gradient = mixer.get_parameter(channel_rows.tensor).grad
    assert gradient is not None, f"{channel_rows.tensor} took no part in the loss"
    return gradient[channel_rows.rows.to(gradient.device)].double()
