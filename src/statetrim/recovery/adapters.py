"""What recovery trains: LoRA on all projections of the linear layers, their convolutions in full.

An `Update` maps trained parameters to names in the checkpoint, where they are written back.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import StatetrimError
from ..runtime.live import LiveModel
from ..storage.checkpoint import Checkpoint
from ..storage.safetensors_file import DTYPES
from .options import RecoverOptions

LayerContext = Callable[[nn.Module], AbstractContextManager[Any]]
Replacement = Callable[[Tensor], Tensor]
"""From the stored value of a tensor to its new value, float32."""


@dataclass(frozen=True)
class Update:
    """One trained tensor of the live model, and the stored tensors that it replaces."""

    stored: tuple[str, ...]  # which the live tensor concatenates along its first dimension
    parameters: tuple[str, ...]  # names of LoRA's A and B in the live model, or of the tensor
    scale: float = 1.0  # of B @ A

    def replacements(
        self, model: Checkpoint, trained: Mapping[str, Tensor]
    ) -> dict[str, Replacement]:
        """Stored name -> its replacement: LoRA's product is added to the stored value, a tensor
        trained in full takes its place."""
        if len(self.parameters) == 2:
            a, b = (trained[name].float() for name in self.parameters)  # [rank, in], [out, rank]
            return {self.stored[0]: lambda before: before.float() + self.scale * (b @ a)}
        replacements: dict[str, Replacement] = {}
        value, start = trained[self.parameters[0]].float(), 0
        for name in self.stored:
            end = start + model.tensors[name][1].shape[0]
            replacements[name] = partial(Tensor.reshape_as, value[start:end])
            start = end
        return replacements


@dataclass
class Coverage:
    """How much of the live model is trained."""

    layers: int = 0
    projections: int = 0
    convolutions: int = 0
    trained_parameters: int = 0
    all_parameters: int = 0

    def __str__(self) -> str:
        share = self.trained_parameters / max(1, self.all_parameters)
        return (
            f"{self.projections} projections and {self.convolutions} convolutions of {self.layers} "
            f"linear-attention layers: {self.trained_parameters:,} parameters, {share:.2%}"
        )


@dataclass
class Adapters:
    """All trained tensors of one live model."""

    updates: list[Update] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


@dataclass(eq=False)
class TrainingResult:
    """Trained tensors by their name in the live model, with losses and held-out errors."""

    adapters: Adapters
    trained: dict[str, Tensor]
    curve: list[dict[str, Any]]
    held_out: list[dict[str, Any]] = field(default_factory=list)


def attach_adapters(
    live: LiveModel, options: RecoverOptions, layer_context: LayerContext = nullcontext
) -> Adapters:
    """Freeze `live`, and make trainable in float32 what the options say; each decoder layer is
    adapted within `layer_context(layer)`."""
    live.module.requires_grad_(False)
    model = live.checkpoint
    names = {id(module): name for name, module in live.module.named_modules()}
    adapters = Adapters()
    mixers = select_mixers(live, options.layers)
    for number, layer in enumerate(live.decoder_layers):
        with layer_context(layer):
            if number in mixers:
                mixer = mixers[number]
                adapt_mixer(mixer, names[id(mixer)], model, adapters, options)
    trained = [parameter for parameter in live.module.parameters() if parameter.requires_grad]
    adapters.coverage.trained_parameters = sum(parameter.numel() for parameter in trained)
    adapters.coverage.all_parameters = model.parameters
    return adapters


def select_mixers(live: LiveModel, layers: Collection[int]) -> dict[int, nn.Module]:
    """Layer -> mixer, for `layers` (none: all). Raises StatetrimError if one has no mixer."""
    unknown = sorted(set(layers) - set(live.mixers))
    if unknown:
        available = ", ".join(map(str, live.mixers))
        raise StatetrimError(
            f"layer {unknown[0]} has no linear attention to train; choose from {available[:80]}"
        )
    return {layer: mixer for layer, mixer in live.mixers.items() if not layers or layer in layers}


def adapt_mixer(
    mixer: nn.Module, name: str, model: Checkpoint, adapters: Adapters, options: RecoverOptions
) -> None:
    """Make one mixer, `name` in the live model, trainable: all its weights, or LoRA on its linear
    modules, and in full its convolutions and linear modules that are never called; adds to
    `adapters`."""
    linear, convolutions = list[str](), dict[str, nn.Conv1d]()
    for module_name, module in mixer.named_modules():
        if isinstance(module, nn.Linear):
            linear.append(module_name)
        elif isinstance(module, nn.Conv1d):
            convolutions[module_name] = module
    trained = [parameter_name for parameter_name, _ in mixer.named_parameters()]
    if not options.whole:
        if not linear:
            raise StatetrimError(f"{name} has no linear module, so there is nothing to adapt")
        unlisted = sorted(set(linear) - set(model.family.projections))
        if unlisted:
            family = type(model.family).__name__
            raise StatetrimError(
                f"recovery would miss the linear module {name}.{unlisted[0]}: family {family} does "
                f"not list it in 'projections'"
            )
        read = model.family.read_projections
        called = [module_name for module_name in linear if module_name not in read]
        _inject_lora(mixer, name, called, model, adapters, options)
        trained = [path for path in trained if path.rpartition(".")[0] in (*convolutions, *read)]
    for path in trained:
        module_path, _, leaf = path.rpartition(".")
        full_name = f"{name}.{module_path}" if module_path else name
        module = mixer.get_submodule(module_path)
        adapters.updates.append(_unfreeze_parameter(module, full_name, leaf, model))
    adapters.coverage.layers += 1
    adapters.coverage.projections += len(linear)
    adapters.coverage.convolutions += len(convolutions)


def _inject_lora(
    root: nn.Module,
    name: str,
    module_names: Sequence[str],
    model: Checkpoint,
    adapters: Adapters,
    options: RecoverOptions,
) -> None:
    """Put float32 LoRA on the linear modules `module_names` of `root`, which is `name` in the live
    model; adds to `adapters.updates`. Raises StatetrimError without peft.

    peft gets `root` in a ModuleDict without a config: from the config it would see a Mamba model
    and refuse `out_proj`, because of a fused kernel that is not used here (see
    `Family.fused_training`).
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise StatetrimError(
            'recovery needs peft; install it with: pip install "statetrim[recover]"'
        ) from None
    for module_name in module_names:
        full_name = f"{name}.{module_name}"
        weight = root.get_parameter(f"{module_name}.weight")
        stored = find_stored_names(f"{full_name}.weight", weight, model)
        adapter = (f"{full_name}.lora_A.default.weight", f"{full_name}.lora_B.default.weight")
        adapters.updates.append(Update(stored, adapter, options.alpha / options.rank))
    targets = [f"root.{module_name}" for module_name in module_names]
    config = LoraConfig(r=options.rank, lora_alpha=options.alpha, target_modules=targets)
    inject_adapter_in_model(config, nn.ModuleDict({"root": root}))
    for parameter_name, parameter in root.named_parameters():
        if ".lora_" in parameter_name:
            parameter.data = parameter.data.float()


class _Cast(nn.Module):
    """Parametrization that gives a float32 parameter in the dtype in which its module computes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def _unfreeze_parameter(module: nn.Module, name: str, leaf: str, model: Checkpoint) -> Update:
    """Train a parameter in full, in float32: one of another dtype becomes a parametrization."""
    parameter: nn.Parameter = getattr(module, leaf)
    stored = find_stored_names(f"{name}.{leaf}", parameter, model)
    if parameter.dtype == torch.float32:
        parameter.requires_grad_(True)
        return Update(stored, (f"{name}.{leaf}",))
    module.register_parameter(leaf, nn.Parameter(parameter.detach().float()))
    parametrize.register_parametrization(module, leaf, _Cast(parameter.dtype), unsafe=True)
    return Update(stored, (f"{name}.parametrizations.{leaf}.original",))


def find_stored_names(name: str, value: Tensor, model: Checkpoint) -> tuple[str, ...]:
    """Names of the checkpoint's tensors from which the live parameter `name` was loaded. Prefixes
    may differ, and loading concatenates some tensors; so the values are compared too."""
    suffix = name[name.index("layers.") :]
    suffixes = [suffix]
    for leaf, stored_leaves in model.family.concatenated_parameters.items():
        if suffix.endswith("." + leaf):
            suffixes = [suffix.removesuffix(leaf) + stored_leaf for stored_leaf in stored_leaves]
            break
    prefixes = set()
    for stored_name in model.tensors:
        if stored_name == suffixes[0] or stored_name.endswith("." + suffixes[0]):
            prefixes.add(stored_name.removesuffix(suffixes[0]))
    for prefix in sorted(prefixes):
        names = tuple(prefix + stored_suffix for stored_suffix in suffixes)
        if set(names) <= set(model.tensors) and _equals_stored(names, value, model):
            return names
    raise StatetrimError(
        f"the live parameter {name} is no tensor of {model.path} under a known name, so what is "
        f"learned there could not be written back"
    )


def _equals_stored(names: Sequence[str], live_value: Tensor, model: Checkpoint) -> bool:
    """Whether the stored tensors, concatenated, have the values of the live parameter."""
    if any(model.tensors[name][1].dtype not in DTYPES for name in names):
        return False
    stored = torch.cat([model.tensor(name) for name in names])
    live_value = live_value.detach().cpu()
    return stored.numel() == live_value.numel() and torch.equal(
        stored.to(live_value.dtype).flatten(), live_value.flatten()
    )


def checkpoint_activations(module: Any) -> None:
    """Recompute each layer's activations in the backward pass instead of keeping them."""
    # Later transformers warn of the name that those before 5.23 have.
    old_name = module.gradient_checkpointing_enable
    enable = getattr(module, "activation_checkpointing_enable", old_name)
    enable({"use_reentrant": False})
