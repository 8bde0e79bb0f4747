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

LayerContext = Callable[[nn.Module], AbstractContextManager[None]]

EXTRA_GROUPS = {
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
        trained_values = [trained[name].float() for name in self.parameters]
        if len(trained_values) == 2:
            a, b = trained_values  # [rank, in], [out, rank]
            return {self.stored[0]: lambda before: before.float() + self.scale * (b @ a)}
        rows = [model.tensors[name][1].shape[0] for name in self.stored]
        pieces = zip(self.stored, torch.split(trained_values[0], rows), strict=True)
        return {name: lambda before, x=piece: x.reshape(before.shape) for name, piece in pieces}  # type: ignore[misc]


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


def check_groups(also: Sequence[str]) -> None:
    unknown = sorted(set(also) - set(EXTRA_GROUPS))
    if unknown:
        raise StatetrimError(
            f"{unknown[0]!r} cannot be adapted too; choose from {', '.join(EXTRA_GROUPS)}"
        )


def attach_adapters(
    live: LiveModel,
    *,
    rank: int,
    alpha: int,
    also: Sequence[str] = (),
    layers: Collection[int] = (),
    whole: bool = False,
    layer_context: LayerContext | None = None,
) -> Adapters:
    """Freeze `live` and make what recovery trains trainable, in float32.

    Of linear attention `layers` only, or all, and their weights `whole` or by LoRA. Each decoder
    layer is adapted within `around(layer)`. Refuses when a linear module of a linear-attention
    layer would be left out.
    """
    live.module.requires_grad_(False)
    model = live.checkpoint
    names = {id(module): name for name, module in live.module.named_modules()}
    adapters = Adapters()
    mixers = select_mixers(live, layers)
    for number, layer in enumerate(live.decoder_layers):
        with nullcontext() if layer_context is None else layer_context(layer):
            mixer = live.mixers.get(number)
            other_linear = _linear_outside_mixer(layer, mixer)
            for group, suffixes in EXTRA_GROUPS.items():
                matching = [
                    module_name
                    for module_name in other_linear
                    if module_name.rpartition(".")[2] in suffixes
                ]
                if group in also and matching:
                    _inject_lora(layer, names[id(layer)], matching, model, adapters, rank, alpha)
                _count(adapters.coverage, group, len(matching), group in also)
            if mixer is not None and number in mixers:
                name = names[id(mixer)]
                if whole:
                    unfreeze_mixer(mixer, name, model, adapters)
                else:
                    adapt_mixer(mixer, name, model, adapters, rank=rank, alpha=alpha)
    adapters.coverage.all_parameters = model.parameters
    trained = (p for p in live.module.parameters() if p.requires_grad)
    adapters.coverage.trained_parameters = sum(p.numel() for p in trained)
    return adapters


def select_mixers(live: LiveModel, layers: Collection[int]) -> dict[int, nn.Module]:
    """The mixers of these layers, or of all."""
    unknown = sorted(set(layers) - set(live.mixers))
    if unknown:
        available = ", ".join(map(str, live.mixers))
        raise StatetrimError(
            f"layer {unknown[0]} has no linear attention to train; choose from {available[:80]}"
        )
    return {layer: mixer for layer, mixer in live.mixers.items() if not layers or layer in layers}


def _linear_outside_mixer(layer: nn.Module, mixer: nn.Module | None) -> list[str]:
    """The linear modules of a decoder layer but those of its linear attention."""
    mixer_modules = set() if mixer is None else {id(name) for name in mixer.modules()}
    return [
        name
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear) and id(module) not in mixer_modules
    ]


def _count(coverage: Coverage, group: str, modules: int, chosen: bool) -> None:
    adapted, total = getattr(coverage, group)
    setattr(coverage, group, (adapted + (modules if chosen else 0), total + modules))


def adapt_mixer(
    mixer: nn.Module, name: str, model: Checkpoint, adapters: Adapters, *, rank: int, alpha: int
) -> None:
    """Adapt all of one linear-attention layer, `name` in the live model; adds to `found`."""
    linear = _linear_names(mixer)
    unlisted = sorted(set(linear) - set(model.family.projections))
    if unlisted or not linear:
        family = type(model.family).__name__
        raise StatetrimError(
            f"recovery would miss the linear module {name}.{unlisted[0]}: family {family} does not "
            f"list it in 'projections'"
            if unlisted
            else f"{name} has no linear module, so there is nothing to adapt"
        )
    _inject_lora(mixer, name, linear, model, adapters, rank, alpha)
    for module_name, module in list(mixer.named_modules()):
        if isinstance(module, nn.Conv1d):
            for parameter_name in ("weight", "bias"):
                if getattr(module, parameter_name) is not None:
                    adapters.updates.append(
                        _unfreeze_parameter(module, f"{name}.{module_name}", parameter_name, model)
                    )
            adapters.coverage.convolutions += 1
    adapters.coverage.layers += 1
    adapters.coverage.projections += len(linear)


def unfreeze_mixer(mixer: nn.Module, name: str, model: Checkpoint, adapters: Adapters) -> None:
    """Train every weight of one linear-attention layer, norms and decays too; adds to `found`."""
    for parameter_path, _ in list(mixer.named_parameters()):
        module_path, _, parameter_name = parameter_path.rpartition(".")
        full_name = f"{name}.{module_path}" if module_path else name
        adapters.updates.append(
            _unfreeze_parameter(mixer.get_submodule(module_path), full_name, parameter_name, model)
        )
    adapters.coverage.layers += 1
    adapters.coverage.projections += len(_linear_names(mixer))
    adapters.coverage.convolutions += sum(isinstance(m, nn.Conv1d) for m in mixer.modules())


def _linear_names(mixer: nn.Module) -> list[str]:
    return [name for name, module in mixer.named_modules() if isinstance(module, nn.Linear)]


def _inject_lora(
    root: nn.Module,
    name: str,
    module_names: Sequence[str],
    model: Checkpoint,
    adapters: Adapters,
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
    for module_name in module_names:
        full_name = f"{name}.{module_name}"
        stored = find_stored_names(
            f"{full_name}.weight", root.get_parameter(f"{module_name}.weight"), model
        )
        adapter = (f"{full_name}.lora_A.default.weight", f"{full_name}.lora_B.default.weight")
        adapters.updates.append(Update(stored, adapter, alpha / rank))
    holder = nn.ModuleDict({"home": root})
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=[f"home.{p}" for p in module_names]
    )
    already_trainable = [
        p for p in root.parameters() if p.requires_grad
    ]  # peft freezes all but its own
    inject_adapter_in_model(config, holder)
    for parameter in already_trainable:
        parameter.requires_grad_(True)
    for parameter_name, parameter in root.named_parameters():
        if ".lora_" in parameter_name:
            parameter.data = parameter.data.float()


class _Cast(nn.Module):
    """A float32 parameter in the dtype its module computes in."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def _unfreeze_parameter(
    module: nn.Module, name: str, parameter_name: str, model: Checkpoint
) -> Update:
    """Train one parameter whole; where it is not float32, through a float32 original."""
    parameter: nn.Parameter = getattr(module, parameter_name)
    stored = find_stored_names(f"{name}.{parameter_name}", parameter, model)
    if parameter.dtype == torch.float32:
        parameter.requires_grad_(True)
        return Update(stored, (f"{name}.{parameter_name}",))
    setattr(module, parameter_name, nn.Parameter(parameter.detach().float()))
    parametrize.register_parametrization(
        module, parameter_name, _Cast(parameter.dtype), unsafe=True
    )
    return Update(stored, (f"{name}.parametrizations.{parameter_name}.original",))


def find_stored_names(name: str, value: Tensor, model: Checkpoint) -> tuple[str, ...]:
    """The tensors of the checkpoint that a live parameter was made of.

    Prefixes may differ, and some parameters are joined from several tensors on loading; that it is
    the right one is certain only when the values are the same.
    """
    suffix = name[name.index("layers.") :]
    joined = next(
        (
            joined
            for joined in model.family.concatenated_parameters
            if suffix.endswith("." + joined)
        ),
        None,
    )
    suffixes = [suffix]
    if joined is not None:
        suffixes = [
            suffix.removesuffix(joined) + suffix_part
            for suffix_part in model.family.concatenated_parameters[joined]
        ]
    prefixes = {
        stored_name.removesuffix(suffixes[0])
        for stored_name in model.tensors
        if stored_name == suffixes[0] or stored_name.endswith("." + suffixes[0])
    }
    for prefix in sorted(prefixes):
        names = tuple(prefix + suffix_part for suffix_part in suffixes)
        if all(suffix_part in model.tensors for suffix_part in names) and _equals_stored(
            names, value, model
        ):
            return names
    raise StatetrimError(
        f"the live parameter {name} is no tensor of {model.path} under a known name, so what is "
        f"learned there could not be written back"
    )


def _equals_stored(names: Sequence[str], live_value: Tensor, model: Checkpoint) -> bool:
    if any(model.tensors[name][1].dtype not in DTYPES for name in names):
        return False
    stored = torch.cat([model.tensor(name) for name in names])
    live_value = live_value.detach().cpu()
    return stored.numel() == live_value.numel() and torch.equal(
        stored.to(live_value.dtype).flatten(), live_value.flatten()
    )
