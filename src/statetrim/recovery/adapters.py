"""What recovery trains: LoRA on every projection of every linear layer, convolutions whole.

Each trained tensor knows under which names it is stored, so that it can be written back there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import StatetrimError
from ..runtime.live import LiveModel
from ..storage.checkpoint import Checkpoint
from ..storage.safetensors_file import DTYPES

Around = Callable[[nn.Module], AbstractContextManager[None]]

ALSO = {
    "softmax": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "input_linear", "output_linear"),
}
"""What can be adapted besides linear attention, by the names of the modules."""


@dataclass(frozen=True)
class Update:
    """One trained tensor: which stored tensors it is made of, which parameters changed it."""

    stored: tuple[str, ...]  # along the first dimension, one after the other
    parameters: tuple[str, ...]  # of the live model: LoRA's A and B, or the tensor itself
    scale: float = 1.0

    def replacements(
        self, model: Checkpoint, trained: Mapping[str, Tensor]
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """For each stored tensor a function from its old value to the new one, float32."""
        values = [trained[name].float() for name in self.parameters]
        if len(values) == 2:
            a, b = values  # [rank, in], [out, rank]
            return {self.stored[0]: lambda before: before.float() + self.scale * (b @ a)}
        rows = [model.tensors[name][1].shape[0] for name in self.stored]
        parts = zip(self.stored, torch.split(values[0], rows), strict=True)
        return {name: lambda before, x=part: x.reshape(before.shape) for name, part in parts}  # type: ignore[misc]


@dataclass
class Coverage:
    """What is trained, counted on the live model."""

    layers: int = 0
    projections: int = 0
    convolutions: int = 0
    softmax: tuple[int, int] = (0, 0)  # adapted, of all
    mlp: tuple[int, int] = (0, 0)
    trained_parameters: int = 0
    all_parameters: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"softmax": list(self.softmax), "mlp": list(self.mlp)}


@dataclass
class Adapters:
    """Everything trained in one live model."""

    updates: list[Update] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


def refuse_unknown_groups(also: Sequence[str]) -> None:
    unknown = sorted(set(also) - set(ALSO))
    if unknown:
        raise StatetrimError(f"{unknown[0]!r} cannot be adapted too; choose from {', '.join(ALSO)}")


def attach(
    live: LiveModel,
    *,
    rank: int,
    alpha: int,
    also: Sequence[str] = (),
    layers: Collection[int] = (),
    whole: bool = False,
    around: Around | None = None,
) -> Adapters:
    """Freeze `live` and make what recovery trains trainable, in float32.

    Of linear attention `layers` only, or all, and their weights `whole` or by LoRA. Each decoder
    layer is adapted within `around(layer)`. Refuses when a linear module of a linear-attention
    layer would be left out.
    """
    live.module.requires_grad_(False)
    model = live.checkpoint
    names = {id(module): name for name, module in live.module.named_modules()}
    found = Adapters()
    chosen = named_mixers(live, layers)
    for number, layer in enumerate(live.decoder_layers):
        with nullcontext() if around is None else around(layer):
            inside = live.mixers.get(number)
            beside = _linear_beside(layer, inside)
            for kind, wanted in ALSO.items():
                parts = [part for part in beside if part.rpartition(".")[2] in wanted]
                if kind in also and parts:
                    _adapt(layer, names[id(layer)], parts, model, found, rank, alpha)
                _count(found.coverage, kind, len(parts), kind in also)
            if inside is not None and number in chosen:
                name = names[id(inside)]
                if whole:
                    attach_whole(inside, name, model, found)
                else:
                    attach_to_mixer(inside, name, model, found, rank=rank, alpha=alpha)
    found.coverage.all_parameters = model.parameters
    trained = (p for p in live.module.parameters() if p.requires_grad)
    found.coverage.trained_parameters = sum(p.numel() for p in trained)
    return found


def named_mixers(live: LiveModel, layers: Collection[int]) -> dict[int, nn.Module]:
    """The mixers of these layers, or of all."""
    unknown = sorted(set(layers) - set(live.mixers))
    if unknown:
        known = ", ".join(map(str, live.mixers))
        raise StatetrimError(
            f"layer {unknown[0]} has no linear attention to train; choose from {known[:80]}"
        )
    return {layer: mixer for layer, mixer in live.mixers.items() if not layers or layer in layers}


def _linear_beside(layer: nn.Module, mixer: nn.Module | None) -> list[str]:
    """The linear modules of a decoder layer but those of its linear attention."""
    inside = set() if mixer is None else {id(part) for part in mixer.modules()}
    return [
        part
        for part, module in layer.named_modules()
        if isinstance(module, nn.Linear) and id(module) not in inside
    ]


def _count(coverage: Coverage, kind: str, modules: int, chosen: bool) -> None:
    adapted, total = getattr(coverage, kind)
    setattr(coverage, kind, (adapted + (modules if chosen else 0), total + modules))


def attach_to_mixer(
    mixer: nn.Module, name: str, model: Checkpoint, found: Adapters, *, rank: int, alpha: int
) -> None:
    """Adapt all of one linear-attention layer, `name` in the live model; adds to `found`."""
    linear = _linear_of(mixer)
    missed = sorted(set(linear) - set(model.family.projections))
    if missed or not linear:
        family = type(model.family).__name__
        raise StatetrimError(
            f"recovery would miss the linear module {name}.{missed[0]}: family {family} does not "
            f"list it in 'projections'"
            if missed
            else f"{name} has no linear module, so there is nothing to adapt"
        )
    _adapt(mixer, name, linear, model, found, rank, alpha)
    for part, module in list(mixer.named_modules()):
        if isinstance(module, nn.Conv1d):
            for leaf in ("weight", "bias"):
                if getattr(module, leaf) is not None:
                    found.updates.append(_unfreeze(module, f"{name}.{part}", leaf, model))
            found.coverage.convolutions += 1
    found.coverage.layers += 1
    found.coverage.projections += len(linear)


def attach_whole(mixer: nn.Module, name: str, model: Checkpoint, found: Adapters) -> None:
    """Train every weight of one linear-attention layer, norms and decays too; adds to `found`."""
    for path, _ in list(mixer.named_parameters()):
        home, _, leaf = path.rpartition(".")
        place = f"{name}.{home}" if home else name
        found.updates.append(_unfreeze(mixer.get_submodule(home), place, leaf, model))
    found.coverage.layers += 1
    found.coverage.projections += len(_linear_of(mixer))
    found.coverage.convolutions += sum(isinstance(m, nn.Conv1d) for m in mixer.modules())


def _linear_of(mixer: nn.Module) -> list[str]:
    return [part for part, module in mixer.named_modules() if isinstance(module, nn.Linear)]


def _adapt(
    home: nn.Module,
    name: str,
    parts: Sequence[str],
    model: Checkpoint,
    found: Adapters,
    rank: int,
    alpha: int,
) -> None:
    """LoRA on the linear modules `parts` of `home`.

    peft is given the module in a plain holder, without a config: it refuses `out_proj` of Mamba
    models by their type, for a fused kernel that is not taken here (see `Family.fused_training`).
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise StatetrimError(
            'recovery needs peft; install it with: pip install "statetrim[recover]"'
        ) from None
    for part in parts:
        whole = f"{name}.{part}"
        stored = stored_names(f"{whole}.weight", home.get_parameter(f"{part}.weight"), model)
        adapter = (f"{whole}.lora_A.default.weight", f"{whole}.lora_B.default.weight")
        found.updates.append(Update(stored, adapter, alpha / rank))
    holder = nn.ModuleDict({"home": home})
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=[f"home.{p}" for p in parts])
    frozen = [p for p in home.parameters() if p.requires_grad]  # peft freezes all but its own
    inject_adapter_in_model(config, holder)
    for parameter in frozen:
        parameter.requires_grad_(True)
    for parameter_name, parameter in home.named_parameters():
        if ".lora_" in parameter_name:
            parameter.data = parameter.data.float()


class _Cast(nn.Module):
    """A float32 parameter in the dtype its module computes in."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def _unfreeze(module: nn.Module, name: str, leaf: str, model: Checkpoint) -> Update:
    """Train one parameter whole; where it is not float32, through a float32 original."""
    value: nn.Parameter = getattr(module, leaf)
    stored = stored_names(f"{name}.{leaf}", value, model)
    if value.dtype == torch.float32:
        value.requires_grad_(True)
        return Update(stored, (f"{name}.{leaf}",))
    setattr(module, leaf, nn.Parameter(value.detach().float()))
    parametrize.register_parametrization(module, leaf, _Cast(value.dtype), unsafe=True)
    return Update(stored, (f"{name}.parametrizations.{leaf}.original",))


def stored_names(name: str, value: Tensor, model: Checkpoint) -> tuple[str, ...]:
    """The tensors of the checkpoint that a live parameter was made of.

    Prefixes may differ, and some parameters are joined from several tensors on loading; that it is
    the right one is certain only when the values are the same.
    """
    tail = name[name.index("layers.") :]
    leaf = next(
        (leaf for leaf in model.family.concatenated_parameters if tail.endswith("." + leaf)), None
    )
    tails = [tail]
    if leaf is not None:
        tails = [
            tail.removesuffix(leaf) + part for part in model.family.concatenated_parameters[leaf]
        ]
    prefixes = {
        known.removesuffix(tails[0])
        for known in model.tensors
        if known == tails[0] or known.endswith("." + tails[0])
    }
    for prefix in sorted(prefixes):
        names = tuple(prefix + part for part in tails)
        if all(part in model.tensors for part in names) and _same(names, value, model):
            return names
    raise StatetrimError(
        f"the live parameter {name} is no tensor of {model.path} under a known name, so what is "
        f"learned there could not be written back"
    )


def _same(names: Sequence[str], value: Tensor, model: Checkpoint) -> bool:
    if any(model.tensors[name][1].dtype not in DTYPES for name in names):
        return False
    stored = torch.cat([model.tensor(name) for name in names])
    value = value.detach().cpu()
    return stored.numel() == value.numel() and torch.equal(
        stored.to(value.dtype).flatten(), value.flatten()
    )
