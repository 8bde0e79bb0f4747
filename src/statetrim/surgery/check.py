"""Is a cut what it claims to be? Two checks that can only fail by a defect, on the real models.

Each mixer of the cut model must answer as the original's with the dropped channels masked where
the kernel is called, or with the dropped heads silenced before the output projection. And the cut
model must decode, token by token, what it says when it reads the whole text at once. That stock
code loads it is seen on the way.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.plan import Plan
from ..errors import StatetrimError
from ..runtime.kernel_hooks import KernelCall, hook_kernels
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.mixers import MixerCall
from ..runtime.placement import Placement
from ..runtime.sequential import mixer_calls
from ..storage.checkpoint import Checkpoint

TOKENS = 64
DECODED_TOKENS = 8
DECODED_TOKENS_FROM_DISK = 2  # each token takes all weights from there
TOLERANCE = 1e-3  # of the largest value compared; float32, so rounding stays far below
_MAX_GAP_RATIO = 4.0  # how much larger than the original's own gap a gap of the cut model may be


@dataclass(frozen=True)
class CutComparison:
    """The largest differences found, each relative to the largest value compared."""

    runtime: str
    sliced_against_masked: float
    prefill_against_decode: float
    prefill_against_decode_before: float  # the original's own gap


def compare_cut(
    model: Checkpoint,
    plan: Plan,
    small: Checkpoint,
    *,
    placement: Placement | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> CutComparison:
    """Compare `small`, cut from `model` by `plan`, with it; a difference is an error.

    Both run in float32, whatever the placement says.
    """
    placement = replace(placement or Placement(), dtype=torch.float32)
    progress("loading both models")
    before, after = (load_live(checkpoint, placement) for checkpoint in (model, small))
    ids = before.random_ids(1, TOKENS)  # any will do: the comparison is exact on all of them
    progress("comparing mixers")
    sliced = _compare_mixers(plan, before, after, ids)
    progress("comparing prefill and decode")
    decoded = DECODED_TOKENS_FROM_DISK if placement.layerwise else DECODED_TOKENS
    gap, gap_before = (_decode_gap(live, ids, decoded) for live in (after, before))
    if gap > max(TOLERANCE, _MAX_GAP_RATIO * gap_before):
        raise StatetrimError(
            f"{small.path} decodes other logits than it prefills (by {gap:.1e} of the largest, the "
            f"original by {gap_before:.1e}); this is a defect of statetrim, please report it"
        )
    return CutComparison(after.runtime.name, sliced, gap, gap_before)


def _compare_mixers(plan: Plan, before: LiveModel, after: LiveModel, ids: Tensor) -> float:
    """The original runs; then both mixers of a layer get what that layer was given."""
    gaps = {
        call.layer: _mixer_gap(plan, before, after, call) for call in mixer_calls(before, [ids])
    }
    for layer, gap in zip(gaps, torch.stack([gap.cpu() for gap in gaps.values()]), strict=True):
        if not gap <= TOLERANCE:
            raise StatetrimError(
                f"layer {layer} of {after.checkpoint.path} differs from the original with the "
                f"same channels or heads masked (by {gap:.1e} of the largest value); this is a "
                f"defect of statetrim, please report it"
            )
    return max(float(gap) for gap in gaps.values())


def _mixer_gap(plan: Plan, before: LiveModel, after: LiveModel, call: MixerCall) -> Tensor:
    if plan.kept_heads is not None:
        kept = plan.kept_heads[call.layer].flatten()
        with _mask_heads(before, call.layer, kept):
            expected = _kernel_and_mixer_outputs(before, call, None)
        actual = _kernel_and_mixer_outputs(after, call, None)
        expected["kernel"] = expected["kernel"].index_select(-2, kept.to(expected["kernel"].device))
        return torch.stack(
            [_relative_gap(value, actual[name]) for name, value in expected.items()]
        ).max()
    expected, actual = (
        _kernel_and_mixer_outputs(before, call, plan.kept),
        _kernel_and_mixer_outputs(after, call, None),
    )
    if plan.kept_values is not None:
        # The norm runs over fewer channels now, so the comparison ends where it begins.
        expected = {"kernel": _kept_values(expected["kernel"], plan.kept_values[call.layer])}
    return torch.stack(
        [_relative_gap(value, actual[name]) for name, value in expected.items()]
    ).max()


@contextmanager
def _mask_heads(live: LiveModel, layer: int, kept: Tensor) -> Iterator[None]:
    """Within, the output projection of a layer is given zeros for all other value heads."""
    mask = torch.zeros(live.checkpoint.geometry.num_v_heads, 1)
    mask[kept] = 1.0

    def mask_input(module: nn.Module, args: Any) -> tuple[Any, ...]:
        masked = args[0].unflatten(-1, (len(mask), -1)) * mask.to(args[0])
        return masked.flatten(-2), *args[1:]

    hook = live.output_projections[layer].register_forward_pre_hook(mask_input)
    try:
        yield
    finally:
        hook.remove()


def _kernel_and_mixer_outputs(
    live: LiveModel, call: MixerCall, kept: Mapping[int, Tensor] | None
) -> dict[str, Tensor]:
    """What a layer's kernel and mixer give for a call."""
    kernel_calls: list[KernelCall] = []
    with (
        torch.inference_mode(),
        hook_kernels(live, kernel_calls.append, kept_keys=kept, layers=[call.layer]),
    ):
        mixer_output = call.repeat(live.mixers[call.layer])
    return {"kernel": kernel_calls[-1].output, "mixer": mixer_output}


def _kept_values(output: Tensor, kept: Tensor) -> Tensor:
    """output [batch, time, value heads, channels] -> [..., kept channels]; kept [heads, keep]."""
    return output.gather(-1, kept.to(output.device).expand(*output.shape[:2], *kept.shape))


def _relative_gap(expected: Tensor, actual: Tensor) -> Tensor:
    """Nan where nothing but zeros was expected."""
    return (expected - actual.to(expected.device)).abs().max() / expected.abs().max()


def _decode_gap(live: LiveModel, ids: Tensor, decoded: int) -> float:
    """Logits of the last tokens: the text read at once, against one token at a time."""
    with torch.inference_mode():
        prefilled = live.logits(ids)[:, -decoded:]
        _, cache = live.forward_with_cache(ids[:, :-decoded])
        steps = []
        for token in torch.split(ids[:, -decoded:], 1, dim=1):
            logits, cache = live.forward_with_cache(token, cache)
            steps.append(logits)
    return float(_relative_gap(prefilled, torch.cat(steps, dim=1)))
