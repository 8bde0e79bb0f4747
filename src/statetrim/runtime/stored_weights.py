"""Weights that stay on disk and are loaded for one module at a time.

transformers renames and fuses tensors on loading; its own loader is used here as well, for the
tensors of one module.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint
from ..storage.safetensors_file import DTYPES
from .loaded_weights import check_finite, other_values


class StoredWeights:
    """Loads and unloads the weights of a model whose parameters start on the `meta` device."""

    def __init__(self, module: Any, checkpoint: Checkpoint, device: torch.device) -> None:
        self.module, self.checkpoint, self.device = module, checkpoint, device
        self._module_names = {id(submodule): name for name, submodule in module.named_modules()}
        self._names = list(module.state_dict())
        self._sources = _source_names(module, checkpoint)
        self._tied_names = _tied_names(module)
        self._unloaded = set(self._names)
        self._hooks: dict[int, tuple[RemovableHandle, ...]] = {}
        self._paused = False
        missing = [name for name in self._names if self._stored_name(name) is None]
        check_complete(module, checkpoint.path, missing)
        self._check_tied()

    def _check_tied(self) -> None:
        """Refuse a head that the config ties to the embeddings, though the files hold another."""
        head = self.module.get_output_embeddings()
        for name, others in self._tied_names.items():
            for other in set(others) & self._sources.keys() if name in self._sources else ():
                if self._owner(other)[0] is head:
                    first, second = self._sources[name][0], self._sources[other][0]
                    values = self.checkpoint.tensor(first), self.checkpoint.tensor(second)
                    if not torch.equal(*values):
                        raise other_values(self.checkpoint, second)

    def load(self, submodule: nn.Module) -> None:
        """Load the tensors of `submodule` and its children that are not in memory yet."""
        self._load_names(self._names_in(submodule))

    def load_own(self, submodule: nn.Module) -> None:
        """Load the direct parameters of `submodule`, not those of its children."""
        prefix, own = self._prefix(submodule), (*submodule._parameters, *submodule._buffers)
        self._load_names(prefix + name for name in own)

    def unload(self, submodule: nn.Module) -> None:
        """Replace the parameters of `submodule` and its children with empty ones on `meta`, except
        those tied to another module; changes made to them are lost."""
        for name in self._names_in(submodule):
            owner, leaf = self._owner(name)
            parameter = owner._parameters.get(leaf)
            if parameter is not None and name not in self._tied_names:
                empty = torch.empty_like(parameter, device="meta")
                owner._parameters[leaf] = nn.Parameter(empty, parameter.requires_grad)
                self._unloaded.add(name)

    def stream(self, submodules: Iterable[nn.Module]) -> None:
        """Load each of `submodules` when it is called and unload it afterwards, from now on; all
        other modules are loaded on their first call and stay."""
        streamed = set[nn.Module]()
        for submodule in submodules:
            streamed.update(submodule.modules())
            self._hooks[id(submodule)] = self._streaming_hooks(submodule)
        for submodule in self.module.modules():
            if submodule not in streamed:
                submodule.register_forward_pre_hook(lambda module, args: self.load_own(module))

    def load_permanently(self, submodule: nn.Module) -> None:
        """Load `submodule` and stop streaming it and its children. Tied weights are read again, so
        it has a copy of its own. A streamed module around it still unloads it after a call."""
        own = list[str]()
        for name in self._names_in(submodule):
            owner, leaf = self._owner(name)
            parameter = owner._parameters.get(leaf)  # None for every buffer, loaded or not
            if name not in self._unloaded or (parameter is not None and not parameter.is_meta):
                continue
            if name in self._sources:
                own.append(name)
            else:
                self._load_own_copy_of_tied(name)
        self._load_names(own, tie=False)
        for inner in submodule.modules():
            for hook in self._hooks.pop(id(inner), ()):
                hook.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, streamed modules are neither loaded nor unloaded by their calls."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _streaming_hooks(self, submodule: nn.Module) -> tuple[RemovableHandle, ...]:
        """Hooks that load `submodule` before a call and unload it after, unless paused."""
        loaded_by_call: list[bool] = []  # a stack: calls may nest

        def load_before(module: nn.Module, args: Any) -> None:
            is_loaded = self._unloaded.isdisjoint(self._names_in(module))
            loaded_by_call.append(not self._paused and not is_loaded)
            if loaded_by_call[-1]:
                self.load(module)

        def unload_after(module: nn.Module, args: Any, output: Any) -> None:
            if loaded_by_call.pop():
                self.unload(module)

        return (
            submodule.register_forward_pre_hook(load_before, prepend=True),
            submodule.register_forward_hook(unload_after, always_call=True),
        )

    def _prefix(self, submodule: nn.Module) -> str:
        name = self._module_names[id(submodule)]
        return f"{name}." if name else ""

    def _names_in(self, submodule: nn.Module) -> list[str]:
        """Names, in the whole model, of the tensors of `submodule` and its children."""
        prefix = self._prefix(submodule)
        return [name for name in self._names if name.startswith(prefix)]

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        """The module that has the tensor `name`, and the tensor's name in that module."""
        path, _, leaf = name.rpartition(".")
        return self.module.get_submodule(path), leaf

    def _stored_name(self, name: str) -> str | None:
        """`name`, or the name it is tied to, whichever the checkpoint has; None if neither."""
        for candidate in (name, *self._tied_names.get(name, [])):
            if candidate in self._sources:
                return candidate
        return None

    def _load_own_copy_of_tied(self, name: str) -> None:
        """Load a tied parameter as a copy of its own; the other module's stays as it is."""
        owner, leaf = self._owner(name)
        stored_name = self._stored_name(name)
        assert stored_name is not None
        tied_owner, tied_leaf = self._owner(stored_name)
        previous, empty = tied_owner._parameters[tied_leaf], owner._parameters[leaf]
        tied_owner._parameters[tied_leaf] = empty
        self._read_tensors([stored_name])
        loaded = tied_owner._parameters[tied_leaf]
        assert loaded is not None and empty is not None
        loaded.requires_grad_(empty.requires_grad)
        tied_owner._parameters[tied_leaf], owner._parameters[leaf] = previous, loaded
        self._unloaded.discard(name)

    def _load_names(self, names: Iterable[str], *, tie: bool = True) -> None:
        """Load those of `names` that are not in memory, and keep their `requires_grad`; with `tie`,
        all modules that share a parameter get the loaded one."""
        to_load = set[str]()
        for name in self._unloaded.intersection(names):
            stored_name = self._stored_name(name)
            if stored_name is not None:
                to_load.add(stored_name)
        if not to_load:
            return
        requires_grad = dict[str, bool]()
        for name in to_load:
            owner, leaf = self._owner(name)
            parameter = owner._parameters.get(leaf)
            requires_grad[name] = parameter is not None and parameter.requires_grad
        self._read_tensors(sorted(to_load))
        for name in to_load:
            owner, leaf = self._owner(name)
            if leaf in owner._parameters:
                value = owner._parameters[leaf]
                assert value is not None
                value.requires_grad_(requires_grad[name])
                for tied_name in self._tied_names.get(name, ()) if tie else ():
                    tied_owner, leaf = self._owner(tied_name)
                    tied_owner._parameters[leaf] = value
                    self._unloaded.discard(tied_name)
        self._unloaded -= to_load

    def _read_tensors(self, names: list[str]) -> None:
        """Read the model's tensors `names` onto the device with transformers' loader."""
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        dtype = self.module.dtype
        config = LoadStateDictConfig(
            device_map={"": self.device},
            dtype=dtype,
            dtype_plan=self.module._get_dtype_plan(dtype),
            weight_mapping=_weight_conversions(self.module),
        )
        tensors = dict[str, _LazyTensor]()
        for name in names:
            for source in self._sources[name]:
                tensors[source] = _LazyTensor(self.checkpoint, source)
        with torch.inference_mode(False), _progress_bar_disabled():
            info, _ = convert_and_load_state_dict_in_model(self.module, tensors, config)
        missing = set(names).intersection(info.missing_keys)
        check_complete(self.module, self.checkpoint.path, missing, info.mismatched_keys)


class _LazyTensor:
    """A stored tensor that is read when transformers indexes it: `tensor[...]`."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.checkpoint, self.name = checkpoint, name

    def __getitem__(self, index: Any) -> Tensor:
        if self.checkpoint.logical_tensors[self.name].dtype in DTYPES:
            stored = self.checkpoint.tensor(self.name)
            check_finite([self.name], stored, self.checkpoint)  # before it is on a GPU
            return stored
        from safetensors import safe_open

        shard, _ = self.checkpoint.tensors[self.name]
        with safe_open(shard.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(self.name)
            return tensor


def auto_class(checkpoint: Checkpoint) -> Any:
    """The Auto class of transformers that loads a checkpoint of this model type."""
    import transformers

    return getattr(transformers, checkpoint.family.auto_class(checkpoint.config))


def empty_model(
    checkpoint: Checkpoint,
    staging_directory: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Any:
    """The model that `from_pretrained(staging_directory)` would build, in eval mode, with its
    parameters on `meta`; its buffers are computed, and on `device` (default: CPU). `dtype` None is
    the config's, else that of the first stored tensor."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig

    local: Any = {"local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(staging_directory, **local)
    dtype = dtype or getattr(config.get_text_config(), "dtype", None)
    stored = (tensor.dtype for _, tensor in checkpoint.tensors.values() if tensor.dtype in DTYPES)
    dtype = dtype or DTYPES[next(stored, "F32")]
    with init_empty_weights(include_buffers=False):
        module = auto_class(checkpoint).from_config(config, dtype=dtype, trust_remote_code=False)
    for submodule in module.modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None:
                submodule._buffers[name] = buffer.to(device or "cpu")
    return module.eval()


def _weight_conversions(module: Any) -> list[Any]:
    """The rules by which transformers renames and fuses stored tensors of this model."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    return list(get_model_conversion_mapping(module))


def _source_names(module: Any, checkpoint: Checkpoint) -> dict[str, list[str]]:
    """For every tensor of the model, the names of those in the checkpoint it is made from."""
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules, model_names = _weight_conversions(module), module.state_dict()
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    targets = dict[str | None, list[str]]()
    for rule in converters:
        targets |= dict.fromkeys(rule.source_patterns, rule.target_patterns)
    sources: dict[str, list[str]] = defaultdict(list)
    for source in checkpoint.logical_tensors:
        name, pattern = rename_source_key(
            source, renamings, converters, module.base_model_prefix, model_names
        )
        if name not in model_names and source in model_names:
            name, pattern = source, None
        first, *others = targets.get(pattern, [""])
        for target_pattern in (first, *others):
            target = name.replace(first, target_pattern) if first else name
            if target in model_names:
                sources[target].append(source)
    return sources


def _tied_names(module: Any) -> dict[str, list[str]]:
    """For every parameter that several modules share, its other names."""
    groups: dict[str, set[str]] = defaultdict(set)
    tied: Mapping[str, str] = module.get_expanded_tied_weights_keys(all_submodels=True)
    for target, source in tied.items():
        groups[source] |= {source, target}
    tied_names = dict[str, list[str]]()
    for group in groups.values():
        for name in group:
            tied_names[name] = sorted(group - {name})
    return tied_names


def check_complete(
    module: Any, path: Path, missing: Iterable[str], mismatched: Iterable[tuple[Any, ...]] = ()
) -> None:
    """Refuse a checkpoint that lacks tensors, or has some of another shape (tuples that begin with
    the name), unless the model ignores all of them."""
    mismatched_names = [name for name, *_ in mismatched]
    for problem, names in (("missing", missing), ("mismatched", mismatched_names)):
        affected = sorted(names)
        for pattern in getattr(module, "_keys_to_ignore_on_load_missing", None) or ():
            affected = [name for name in affected if not re.search(pattern, name)]
        if affected:
            raise StatetrimError(
                f"{path} does not fit its own config: {len(affected)} {problem} tensors, the first "
                f"is {affected[0]}"
            )


@contextmanager
def _progress_bar_disabled() -> Iterator[None]:
    """Within, transformers shows no progress bar; it would show one per layer."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
