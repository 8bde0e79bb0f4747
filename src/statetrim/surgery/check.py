"""Compare a cut with the original; a difference is a defect of statetrim.

Given the same input, each mixer of the cut must return what the original's returns with the pruned
channels masked at the kernel, or the pruned heads masked before the output projection. And the cut
must decode the logits that it prefills. Loading it shows that stock code accepts it.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..artifacts.plan import Plan
from ..cut.shape import Kept
from ..errors import StatetrimError
from ..runtime.kernel_hooks import KernelCall, hook_kernels
from ..runtime.live import LiveModel, MixerCall
from ..runtime.loading import load_live
from ..runtime.placement import Placement
from ..runtime.sequential import mixer_calls
from ..storage.channel_rows import names_by_layer
from ..storage.checkpoint import Checkpoint

TOKENS = 64
DECODED_TOKENS = 8
DECODED_TOKENS_FROM_DISK = 2  # with weights on disk each token reads all of them
TOLERANCE = 1e-3  # relative to the largest value compared; float32 rounding is far below
_MAX_GAP_RATIO = 4.0  # of the cut's gap between prefill and decode to the original's


@dataclass(frozen=True)
class CutComparison:
    """The largest differences, each relative to the largest value compared."""

    runtime: str
    sliced_against_masked: float
    prefill_against_decode: float
    prefill_against_decode_before: float  # the original's own gap


def compare_cut(
    model: Checkpoint, plan: Plan, small: Checkpoint, *, placement: Placement | None = None
) -> CutComparison:
    """Compare `small`, cut by `plan`, with `model` in float32; refuses more than rounding."""
    placement = replace(placement or Placement(), dtype=torch.float32)
    before, after = load_live(model, placement), load_live(small, placement)
    ids = before.random_ids(1, TOKENS)  # any tokens: outputs must agree on all of them
    sliced = _compare_mixers(plan, before, after, ids)
    decoded = DECODED_TOKENS_FROM_DISK if placement.layerwise else DECODED_TOKENS
    gap, gap_before = _decode_gap(after, ids, decoded), _decode_gap(before, ids, decoded)
    if not gap <= max(TOLERANCE, _MAX_GAP_RATIO * gap_before):  # nan too
        raise StatetrimError(
            f"{small.path} decodes other logits than it prefills (by {gap:.1e} of the largest, the "
            f"original by {gap_before:.1e}); this is a defect of statetrim, please report it"
        )
    return CutComparison(after.runtime.name, sliced, gap, gap_before)


def _compare_mixers(plan: Plan, before: LiveModel, after: LiveModel, ids: Tensor) -> float:
    """The largest gap of a mixer, on the inputs that the original's layers get."""
    gaps: dict[int, Tensor] = {}
    for call in mixer_calls(before, [ids]):
        gaps[call.layer] = _mixer_gap(plan, before, after, call)
    for layer, gap in gaps.items():
        if not float(gap) <= TOLERANCE:  # nan too
            raise StatetrimError(
                f"layer {layer} of {after.checkpoint.path} differs from the original with the "
                f"same channels or heads masked (by {float(gap):.1e} of the largest value); this "
                f"is a defect of statetrim, please report it"
            )
    return max(float(gap) for gap in gaps.values())


def _mixer_gap(plan: Plan, before: LiveModel, after: LiveModel, call: MixerCall) -> Tensor:
    """The largest relative gap of kernel and mixer outputs: the cut against the masked original."""
    actual, kept = _kernel_and_mixer_outputs(after, call, {}), plan.kept_in_layer(call.layer)
    normed = ("value", "head") if before.checkpoint.family.norm_over_heads else ("value",)
    masked: Kept = {axis: table for axis, table in kept.items() if axis not in normed}
    expected = _kernel_and_mixer_outputs(before, call, masked)
    if masked.keys() != kept.keys():  # masks of what is normed scale the kernel's output too
        expected["mixer"] = _kernel_and_mixer_outputs(before, call, kept)["mixer"]
    device = expected["kernel"].device
    if "head" in kept:
        heads = kept["head"].flatten().to(device)
        expected["kernel"] = expected["kernel"].index_select(-2, heads)
    if "value" in kept:
        expected["kernel"] = _kept_channels(expected["kernel"], kept["value"].to(device))
    gaps = {name: _relative_gap(value, actual[name]) for name, value in expected.items()}
    if "value" in kept:
        rounding = _rounding_of_folded_norm(after.checkpoint, call.layer)
        gaps["mixer"] = (gaps["mixer"] - rounding).clamp_min(0.0)
    return torch.stack([*gaps.values()]).max()


def _rounding_of_folded_norm(cut: Checkpoint, layer: int) -> float:
    """How far a mixer's output may be off because the weight of a norm that all heads share was
    multiplied into the output projection: by the rounding of its dtype, and by any amount if the
    cut is quantised."""
    roles = {rows.role for rows in cut.channels(layer)}
    if "shared_norm" not in roles:
        return 0.0
    if cut.quantized:
        return math.inf
    return torch.finfo(cut.tensor(names_by_layer(cut.channel_rows, "o_proj")[layer]).dtype).eps


def _kernel_and_mixer_outputs(live: LiveModel, call: MixerCall, kept: Kept) -> dict[str, Tensor]:
    """Outputs "kernel" and "mixer" of a layer for a call, with all but `kept` masked."""
    kernel_calls: list[KernelCall] = []
    with (
        torch.inference_mode(),
        hook_kernels(live, kernel_calls.append, kept={call.layer: kept}, layers=[call.layer]),
    ):
        mixer_output = call.repeat(live.mixers[call.layer])
    return {"kernel": kernel_calls[-1].output, "mixer": mixer_output}


def _kept_channels(output: Tensor, kept: Tensor) -> Tensor:
    """output [batch, time, value heads, channels] -> [..., kept channels]; kept [heads, keep]."""
    kept = kept.repeat_interleave(output.shape[-2] // len(kept), dim=0)  # GLA shares values
    return output.gather(-1, kept.expand(*output.shape[:2], *kept.shape))


def _relative_gap(expected: Tensor, actual: Tensor) -> Tensor:
    """Largest difference over largest expected value; 0 if both are zeros throughout."""
    gap = (expected - actual.to(expected.device)).abs().max()
    return torch.where(gap == 0, gap, gap / expected.abs().max())


def _decode_gap(live: LiveModel, ids: Tensor, decoded: int) -> float:
    """Relative gap of the last `decoded` tokens' logits: prefilled at once, against decoded."""
    with torch.inference_mode():
        prefilled = live.logits(ids)[:, -decoded:]
        _, cache = live.forward_with_cache(ids[:, :-decoded])
        steps = []
        for token in torch.split(ids[:, -decoded:], 1, dim=1):
            logits, cache = live.forward_with_cache(token, cache)
            steps.append(logits)
    return float(_relative_gap(prefilled, torch.cat(steps, dim=1)))
