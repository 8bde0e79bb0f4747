"""Is a cut what it claims to be? Two checks that can only fail by a defect, on the real models.

Each mixer of the cut model must answer as the original's with the dropped channels masked where
the kernel is called, and the cut model must decode, token by token, what it says when it reads the
whole text at once. That stock code loads it is seen on the way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.plan import Plan
from ..errors import StatetrimError
from ..runtime.kernel_hooks import KernelCall, mixers, tap
from ..runtime.loading import load
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
        load(which, dtype=torch.float32, layerwise=layerwise) for which in (model, small)
    )
    ids = _tokens(before)
    progress("comparing mixers")
    sliced = _compare_mixers(model, plan, small, before, after, ids)
    progress("comparing prefill and decode")
    gap, gap_before = _decode_gap(small, after, ids), _decode_gap(model, before, ids)
    if gap > max(TOLERANCE, _UPSTREAM * gap_before):
        raise StatetrimError(
            f"{small.path} decodes other logits than it prefills (by {gap:.1e} of the largest, the "
            f"original by {gap_before:.1e}); this is a defect of statetrim, please report it"
        )
    return Checks(after.statetrim_runtime.name, sliced, gap, gap_before)


def _tokens(live: Any) -> Tensor:
    """ids [1, TOKENS], any will do: the comparison is exact on all of them."""
    vocabulary = int(live.get_input_embeddings().weight.shape[0])
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (1, TOKENS), generator=generator).to(live.statetrim_device)


def _compare_mixers(
    model: Checkpoint, plan: Plan, small: Checkpoint, before: Any, after: Any, ids: Tensor
) -> float:
    """The original runs; then both mixers of a layer get what that layer was given."""
    worst = 0.0
    given = _mixer_calls(model, before, ids)
    expected = _Answers(model, before, plan.kept)
    found = _Answers(small, after, None)
    for layer, call in given.items():
        theirs, ours = expected(layer, call), found(layer, call)
        if plan.kept_values is not None:
            # The norm runs over fewer channels now, so the comparison ends where it begins.
            theirs = {"kernel": _kept_values(theirs["kernel"], plan.kept_values[layer])}
        gap = max(_gap(value, ours[name]) for name, value in theirs.items())
        if not gap <= TOLERANCE:
            raise StatetrimError(
                f"layer {layer} of {small.path} differs from the original with the same channels "
                f"masked (by {gap:.1e} of the largest value); this is a defect of statetrim, "
                f"please report it"
            )
        worst = max(worst, gap)
    return worst


Call = tuple[Any, dict[str, Any]]


def _mixer_calls(model: Checkpoint, live: Any, ids: Tensor) -> dict[int, Call]:
    """What each mixer is called with when the model reads `ids`."""
    calls: dict[int, Call] = {}
    handles = []
    for layer, module in mixers(live, model).items():

        def keep(module: nn.Module, args: Any, kwargs: Any, layer: int = layer) -> None:
            calls[layer] = (args, kwargs)

        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    with torch.inference_mode():
        live.base_model(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return calls


class _Answers:
    """A model's mixers, called one at a time: what the kernel and the mixer give."""

    def __init__(
        self, checkpoint: Checkpoint, live: Any, only: Mapping[int, Tensor] | None
    ) -> None:
        self.checkpoint, self.live, self.only = checkpoint, live, only
        self.modules = mixers(live, checkpoint)

    def __call__(self, layer: int, call: Call) -> dict[str, Tensor]:
        heard: list[KernelCall] = []
        args, kwargs = call
        with (
            torch.inference_mode(),
            tap(self.live, self.checkpoint, heard.append, only=self.only, layers=[layer]),
        ):
            answer = self.modules[layer](*args, **kwargs)
        mixer = answer[0] if isinstance(answer, tuple) else answer
        return {"kernel": heard[-1].output, "mixer": mixer}


def _kept_values(output: Tensor, kept: Tensor) -> Tensor:
    """output [batch, time, value heads, channels] -> [..., kept channels]; kept [heads, keep]."""
    return output.gather(-1, kept.to(output.device).expand(*output.shape[:2], *kept.shape))


def _gap(expected: Tensor, found: Tensor) -> float:
    largest = float(expected.abs().max())
    return float((expected - found).abs().max()) / largest if largest else float("nan")


def _decode_gap(checkpoint: Checkpoint, live: Any, ids: Tensor) -> float:
    """Logits of the last tokens: the text read at once, against one token at a time."""
    name = checkpoint.family.cache_argument(checkpoint.config)
    with torch.inference_mode():
        whole = live(input_ids=ids, use_cache=False).logits[:, -DECODED:]
        answer = live(input_ids=ids[:, :-DECODED], use_cache=True)
        steps = []
        for token in torch.split(ids[:, -DECODED:], 1, dim=1):
            answer = live(input_ids=token, use_cache=True, **{name: getattr(answer, name)})
            steps.append(answer.logits[:, -1:])
    return _gap(whole, torch.cat(steps, dim=1))
