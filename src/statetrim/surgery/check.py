"""Is a cut what it claims to be? Two checks that can only fail by a defect, on the real models.

Each mixer of the cut model must answer as the original's with the dropped channels masked where
the kernel is called, and the cut model must decode, token by token, what it says when it reads the
whole text at once. That stock code loads it is seen on the way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..artifacts.plan import Plan
from ..errors import StatetrimError
from ..runtime.kernel_hooks import KernelCall, hook_kernels
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.mixers import MixerCall, hook_mixers
from ..storage.checkpoint import Checkpoint

TOKENS = 64
DECODED = 8
TOLERANCE = 1e-3  # of the largest value compared; float32, so rounding stays far below
_UPSTREAM = 4.0  # how much larger than the original's own gap a gap of the cut model may be


@dataclass(frozen=True)
class Checks:
    """The largest differences found, each relative to the largest value compared."""

    runtime: str
    sliced_against_masked: float
    prefill_against_decode: float
    prefill_against_decode_before: float  # the original's own gap


def check_cut(
    model: Checkpoint,
    plan: Plan,
    small: Checkpoint,
    *,
    layerwise: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> Checks:
    """Compare `small`, cut from `model` by `plan`, with it; a difference is an error."""
    progress("loading both models")
    before, after = (
        load_live(which, dtype=torch.float32, layerwise=layerwise) for which in (model, small)
    )
    ids = before.random_ids(1, TOKENS)  # any will do: the comparison is exact on all of them
    progress("comparing mixers")
    sliced = _compare_mixers(plan, before, after, ids)
    progress("comparing prefill and decode")
    gap, gap_before = _decode_gap(after, ids), _decode_gap(before, ids)
    if gap > max(TOLERANCE, _UPSTREAM * gap_before):
        raise StatetrimError(
            f"{small.path} decodes other logits than it prefills (by {gap:.1e} of the largest, the "
            f"original by {gap_before:.1e}); this is a defect of statetrim, please report it"
        )
    return Checks(after.runtime.name, sliced, gap, gap_before)


def _compare_mixers(plan: Plan, before: LiveModel, after: LiveModel, ids: Tensor) -> float:
    """The original runs; then both mixers of a layer get what that layer was given."""
    worst = 0.0
    calls: list[MixerCall] = []
    with torch.inference_mode(), hook_mixers(before.mixers, calls.append):
        before.hidden(ids)
    for call in calls:
        theirs, ours = _answers(before, call, plan.kept), _answers(after, call, None)
        if plan.kept_values is not None:
            # The norm runs over fewer channels now, so the comparison ends where it begins.
            theirs = {"kernel": _kept_values(theirs["kernel"], plan.kept_values[call.layer])}
        gap = max(_gap(value, ours[name]) for name, value in theirs.items())
        if not gap <= TOLERANCE:
            raise StatetrimError(
                f"layer {call.layer} of {after.checkpoint.path} differs from the original with the "
                f"same channels masked (by {gap:.1e} of the largest value); this is a defect of "
                f"statetrim, please report it"
            )
        worst = max(worst, gap)
    return worst


def _answers(
    live: LiveModel, call: MixerCall, only: Mapping[int, Tensor] | None
) -> dict[str, Tensor]:
    """What a layer's kernel and mixer give for a call."""
    kernel_calls: list[KernelCall] = []
    with (
        torch.inference_mode(),
        hook_kernels(live, kernel_calls.append, only=only, layers=[call.layer]),
    ):
        mixer = call.repeat(live.mixers[call.layer])
    return {"kernel": kernel_calls[-1].output, "mixer": mixer}


def _kept_values(output: Tensor, kept: Tensor) -> Tensor:
    """output [batch, time, value heads, channels] -> [..., kept channels]; kept [heads, keep]."""
    return output.gather(-1, kept.to(output.device).expand(*output.shape[:2], *kept.shape))


def _gap(expected: Tensor, found: Tensor) -> float:
    largest = float(expected.abs().max())
    return float((expected - found).abs().max()) / largest if largest else float("nan")


def _decode_gap(live: LiveModel, ids: Tensor) -> float:
    """Logits of the last tokens: the text read at once, against one token at a time."""
    with torch.inference_mode():
        whole = live.logits(ids)[:, -DECODED:]
        _, cache = live.step(ids[:, :-DECODED])
        steps = []
        for token in torch.split(ids[:, -DECODED:], 1, dim=1):
            logits, cache = live.step(token, cache)
            steps.append(logits)
    return _gap(whole, torch.cat(steps, dim=1))
