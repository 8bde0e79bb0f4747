"""Commands that need autograd, on the `meta` device: the simulated GPUs have no autograd.

Nothing is computed on `meta`, but every operation is dispatched, also in the backward pass, and one
that mixes two devices is an error. The Trainer of transformers is not covered.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental import _config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers import tiny
from helpers.pretended_cuda import INDEXED, DevicesMixed
from helpers.tiny import Load
from statetrim.calibration.calibrate import _backward_loss, _enable_projection_gradients
from statetrim.calibration.sums import Sums, calibration_hooks
from statetrim.recovery.adapters import Adapters, adapt_mixer, attach_adapters
from statetrim.recovery.distillation import Distillation, checked_logit_head
from statetrim.recovery.mixer_repair import _MixerTraining
from statetrim.recovery.options import RecoverOptions
from statetrim.runtime.live import LiveModel, MixerCall, hook_mixers
from statetrim.runtime.loading import load_live
from statetrim.runtime.logits import LogitReader
from statetrim.runtime.placement import Placement
from statetrim.statistics import STATISTICS

META = torch.device("meta")
BF16 = Placement(dtype="bfloat16")  # which grouped experts take there
OPTIONS = RecoverOptions(rank=4, alpha=8, learning_rate=1e-3)

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its slow paths
every_type = tiny.every_type("delta_net", "qwen3_next")


_aten = torch.ops.aten
_READ = (_aten._local_scalar_dense.default, _aten.item.default, _aten.is_nonzero.default)


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, an operation on tensors of two devices is an error. Values read on the host are
    invented: scalars are 1, tensors are zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READ and args[0].is_meta:
            return 1.0 if args[0].is_floating_point() else 1
        target = kwargs.get("device")
        to_host = func is _aten._to_copy.default and target is not None and target.type == "cpu"
        if to_host and args[0].is_meta:
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        moves = func in (_aten.copy_.default, _aten._to_copy.default)
        moves |= func in INDEXED and args[0].is_meta  # whose indices may be on the host
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        devices = {str(x.device) for x in tensors if x.dim()}
        if len(devices) > 1 and not moves:
            raise DevicesMixed(f"tensors on {sorted(devices)} in {func}")
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def masks_keep_everything() -> Iterator[None]:
    """On `meta` the number of true values in a mask is unknown; assume all are."""
    with _config.patch(meta_nonzero_assume_all_nonzero=True):
        yield


def move_to_meta(live: LiveModel) -> LiveModel:
    live.module.to(META)
    return replace(live, device=META)


@every_type
def test_gradients_of_a_calibration(model_type: str, checkpoint: Load) -> None:
    live = load_live(checkpoint(model_type), BF16)
    names = ("query_gradient", "key_gradient", "output_square")
    sums = Sums(live.checkpoint, [STATISTICS[name] for name in names])
    _enable_projection_gradients(live)
    live = move_to_meta(live)
    batch = torch.arange(40).reshape(2, 20) % tiny.VOCABULARY
    with OneDevice():
        reader = LogitReader(live)
        with calibration_hooks([live], sums):
            _backward_loss(reader, batch, None)
            sums.on_gradients(live.mixers)
    for parts in sums._sums.values():
        assert len(parts) == 3 and all(value.device == META for value in parts.values())


@every_type
def test_a_step_of_recovery(model_type: str, pair: Any) -> None:
    teacher, student = (load_live(model, BF16) for model in pair(model_type))
    attach_adapters(student, OPTIONS)
    heads = [checked_logit_head(live) for live in (student, teacher)]
    student, teacher = move_to_meta(student), move_to_meta(teacher)
    learned = [p for p in student.module.parameters() if p.requires_grad]
    answer_positions, generated = torch.arange(3), torch.zeros(2, dtype=torch.bool, device=META)
    loss = Distillation(
        student.module, heads[0], teacher.module, heads[1], answer_positions=answer_positions
    )
    with OneDevice():
        loss(torch.ones(2, 12, dtype=torch.long, device=META), generated)["loss"].backward()
    assert learned and all(p.grad is not None and p.grad.is_meta for p in learned)


@every_type
def test_a_step_of_a_mixer_alone(
    model_type: str, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())  # not for meta
    teacher, student = (load_live(model, BF16) for model in pair(model_type))
    teacher = move_to_meta(teacher)
    student.module.requires_grad_(False)
    layer, mixer = next(iter(student.mixers.items()))
    name = next(name for name, part in student.module.named_modules() if part is mixer)
    adapt_mixer(mixer, name, student.checkpoint, adapters := Adapters(), OPTIONS)
    move_to_meta(student)
    calls: list[MixerCall] = []
    with OneDevice():
        with torch.no_grad(), hook_mixers({layer: teacher.mixers[layer]}, calls.append):
            teacher.hidden_states(torch.ones(2, 12, dtype=torch.long))
        answer_positions, generated = torch.arange(3), torch.tensor([False, True])
        training = _MixerTraining(layer, name, mixer, adapters, OPTIONS, 4, answer_positions)
        training.step(calls[0], generated, 24)
    assert all(p.grad is not None and p.grad.is_meta for p in training.trained.values())
