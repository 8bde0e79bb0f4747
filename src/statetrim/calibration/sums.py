"""Running sums over calibration tokens, updated by the hooks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.statistics import TEXT, LayerStatistics, Statistics
from ..portable.kernels import l2_normalized
from ..runtime.kernel_hooks import KernelCall, Readout
from ..runtime.states import walk_states
from ..storage.checkpoint import Checkpoint

STATE_SUMS = {"state_read", "state_ranks"}
STATE_EVERY = 16  # tokens between two states that are sampled
RANK_THRESHOLD = 1e-4  # singular values above this part of the largest count (arXiv 2602.02195)


class Sums:
    """Float64 sums of every linear-attention layer; only those named in `sum_names` are kept.

    They stay on the device of their layer, and those of a layer are copied to the CPU together: one
    copy per sum and batch would synchronize the device each time.
    """

    def __init__(self, model: Checkpoint, sum_names: Sequence[str]) -> None:
        self.model, self.sum_names, self.tokens = model, sum_names, 0
        self._sums: dict[int, dict[str, Tensor]] = {i: {} for i in model.geometry.layers}

    def on_call(self, call: KernelCall) -> None:
        """Add the Gram matrices [heads, channels, channels] of queries and keys, before and after
        the L2 norm, and the mean square over the channels of the output, [value heads]."""
        for side, activations in (("query", call.queries_by_key_head), ("key", call.key)):
            if f"{side}_gram" in self.sum_names or f"{side}_unit_gram" in self.sum_names:
                # [heads, tokens, channels]
                rows = activations.flatten(0, 1).transpose(0, 1).double()
                self._add(call.layer, f"{side}_gram", _gram(rows))
                rows = l2_normalized(rows) if self.model.family.normalizes_keys else rows
                self._add(call.layer, f"{side}_unit_gram", _gram(rows))
        if "output_square" in self.sum_names:
            square = call.output.flatten(0, -3).double().square().mean(dim=-1).sum(dim=0)
            self._add(call.layer, "output_square", square)
        if STATE_SUMS & set(self.sum_names):
            self._add_states(call)

    def _add_states(self, call: KernelCall) -> None:
        """Add the squares of what each key channel contributes to the output of every 16th token,
        [key heads, channels]. Add the number of blocks, and the sums over their last states of the
        rank (as a share of the full rank) and of the nuclear norm, [value heads, 3]."""
        for block in walk_states(call, self.model.family, STATE_EVERY):
            batch, samples = block.states.shape[:2]
            ends = torch.arange(1, samples + 1) * STATE_EVERY
            query = block.query[:, ends.clamp(max=block.query.shape[1]) - 1].square()
            query = torch.unflatten(query, 0, (batch, -1)).sum(1)  # [batch, samples, key heads, ..]
            rows = block.states.square().sum(-1)  # [batch, samples, value heads, channels]
            rows = torch.unflatten(rows, 2, (query.shape[2], -1)).sum(3)
            self._add(call.layer, "state_read", (query * rows).sum((0, 1)))
            if "state_ranks" in self.sum_names:
                singular = torch.linalg.svdvals(block.states[:, -1])  # [batch, value heads, rank]
                counted = (singular > RANK_THRESHOLD * singular[..., :1]).double().mean(-1)
                sums = torch.stack([torch.ones_like(counted), counted, singular.sum(-1)], -1)
                self._add(call.layer, "state_ranks", sums.sum(0))

    def on_input(self, layer: int, hidden: Tensor) -> None:
        """Add the squares of the mixer's input, [hidden]."""
        self._add(layer, "input_square", hidden.flatten(0, -2).double().square().sum(0))

    def on_readout(self, readout: Readout) -> None:
        """Add the Gram matrices [value heads, channels, channels] of the output projection's input,
        and the moments that a refit needs, with input and output of this one model."""
        if "readout_gram" in self.sum_names:
            values = readout.values.flatten(0, -2).double()
            for channel_rows in self.model.channels(readout.layer):
                if channel_rows.role == "o_proj":
                    rows = values[:, channel_rows.rows.to(values.device)].transpose(0, 1)
                    self._add(readout.layer, "readout_gram", _gram(rows))
        if "readout_moment" in self.sum_names:
            self.on_pair(readout)

    def on_pair(self, pair: Readout) -> None:
        """Add the moments that a refit needs: of the cut's values and the original's output (for
        the removal of whole heads, both of the original)."""
        values = pair.values.flatten(0, -2).double()
        target = pair.output.flatten(0, -2).double()
        self._add(pair.layer, "readout_moment", values.mT @ values)
        self._add(pair.layer, "target_moment", target.mT @ values)
        self._add(pair.layer, "target_square", target.square().sum().reshape(1))

    def on_gradients(self, mixers: Mapping[int, nn.Module]) -> None:
        """Add the gradients of the query and key projection weights, and reset them to None."""
        for layer, mixer in mixers.items():
            copies: dict[str, list[Tensor]] = {"q_proj": [], "k_proj": []}
            projections = [rows for rows in self.model.channels(layer) if rows.role in copies]
            for channel_rows in projections:
                gradient = mixer.get_parameter(channel_rows.tensor).grad
                assert gradient is not None, f"{channel_rows.tensor} took no part in the loss"
                rows = channel_rows.rows.to(gradient.device)
                copies[channel_rows.role].append(gradient[rows].double())
            self._add(layer, "query_gradient", torch.stack(copies["q_proj"], dim=2))
            self._add(layer, "key_gradient", torch.stack(copies["k_proj"], dim=2))
            for channel_rows in projections:
                mixer.get_parameter(channel_rows.tensor).grad = None

    def _add(self, layer: int, name: str, value: Tensor) -> None:
        """Add to a sum on the device of `value`; a name that is not in `sum_names` is ignored."""
        if name not in self.sum_names:
            return
        total = self._sums[layer].get(name)
        if total is None:
            self._sums[layer][name] = value
        else:
            total += value

    def to_cpu(self, layer: int) -> None:
        """Move a layer's sums to the CPU."""
        self._sums[layer] = _to_cpu(self._sums[layer])

    def cpu_tensors(self) -> list[Tensor]:
        """Move all sums to the CPU and return them, in the same order in every process."""
        tensors = []
        for layer in sorted(self._sums):
            self.to_cpu(layer)
            for name in sorted(self._sums[layer]):
                tensors.append(self._sums[layer][name])
        return tensors

    @property
    def layer_statistics(self) -> dict[int, LayerStatistics]:
        """The sums by layer, on the CPU; those that are there already are not copied, so that later
        additions change them."""
        return {i: LayerStatistics(self.tokens, **_to_cpu(sums)) for i, sums in self._sums.items()}

    def restore(self, saved: Mapping[int, LayerStatistics]) -> None:
        """Replace the sums and the token count by those of an earlier run."""
        for layer, statistics in saved.items():
            self.tokens = statistics.tokens
            for name in self.sum_names:
                value = getattr(statistics, name)
                if value is not None:
                    self._sums[layer][name] = value


def _to_cpu(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All sums on the CPU; those of a device are concatenated, so that one copy moves them."""
    on_device = [name for name, value in sums.items() if value.device.type != "cpu"]
    on_cpu = dict(sums)
    if not on_device:
        return on_cpu
    flat = torch.cat([sums[name].flatten() for name in on_device]).cpu()
    start = 0
    for name in on_device:
        end = start + sums[name].numel()
        on_cpu[name] = flat[start:end].reshape(sums[name].shape).clone()
        start = end
    return on_cpu


def to_statistics(sources: Mapping[str, Sums], lineage: Mapping[str, Any]) -> Statistics:
    """The sums of all sources, of which one must be "text", as one artifact."""
    by_source = {name: sums.layer_statistics for name, sums in sources.items()}
    return Statistics(by_source.pop(TEXT), lineage, by_source)


def _gram(rows: Tensor) -> Tensor:
    """[heads, tokens, channels] -> [heads, channels, channels]."""
    return rows.mT @ rows
