"""Weights that stay in their shards, and come into memory with the module that needs them.

transformers renames and fuses tensors on loading. Its own code does that here too, for the tensors
of one module at a time.
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
from .loaded_weights import check_finite


class StoredWeights:
    """Of one model, whose parameters are on the `meta` device until they are brought."""

    def __init__(self, module: Any, checkpoint: Checkpoint, device: torch.device) -> None:
        self.module, self.checkpoint, self.device = module, checkpoint, device
        self._module_names = {id(submodule): name for name, submodule in module.named_modules()}
        self._names = list(module.state_dict())
        self._sources = _source_names(module, checkpoint)
        self._tied_names = _tied_names(module)
        self._unloaded = set(self._names)
        self._hooks: dict[int, tuple[RemovableHandle, ...]] = {}
        self._paused = False
        _check_complete(
            module, checkpoint.path, (n for n in self._names if not self._stored_name(n))
        )

    def load(self, submodule: nn.Module) -> None:
        """Read what `part` needs and does not have yet."""
        self._load_names(self._names_in(submodule))

    def load_own(self, submodule: nn.Module) -> None:
        """The same of its own parameters, not of those of modules within it."""
        depth = self._prefix(submodule).count(".")
        own = [name for name in self._names_in(submodule) if name.count(".") == depth]
        self._load_names(own)

    def unload(self, submodule: nn.Module) -> None:
        """Forget its parameters, except those that another module shares."""
        for name in self._names_in(submodule):
            owner, leaf = self._owner(name)
            parameter = owner._parameters.get(leaf)
            if parameter is not None and name not in self._tied_names:
                empty = torch.empty_like(parameter, device="meta")
                owner._parameters[leaf] = nn.Parameter(empty, parameter.requires_grad)
                self._unloaded.add(name)

    def stream(self, submodules: Iterable[nn.Module]) -> None:
        """From now on each of `parts` is brought when it is called, and let go when it ends; what
        lies outside of them stays once it was called."""
        streamed_ids = set[int]()
        for submodule in submodules:
            streamed_ids |= {id(inner) for inner in submodule.modules()}
            self._hooks[id(submodule)] = self._streaming_hooks(submodule)
        for submodule in self.module.modules():
            if id(submodule) not in streamed_ids:
                submodule.register_forward_pre_hook(lambda module, args: self.load_own(module))

    def load_permanently(self, submodule: nn.Module) -> None:
        """Bring `part`, to stay, with weights of its own: what another module shares is read again
        for that."""
        names = [name for name in self._names_in(submodule) if name in self._unloaded]
        names = [name for name in names if self._is_empty(name)]
        shared = [name for name in names if name not in self._sources]
        self._load_names(sorted({*names} - {*shared}), tie=False)
        for name in shared:
            self._load_untied(name)
        for inner in submodule.modules():
            for hook in self._hooks.pop(id(inner), ()):
                hook.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, parts do not come and go by themselves."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _streaming_hooks(self, submodule: nn.Module) -> tuple[RemovableHandle, ...]:
        loaded_by_call: list[bool] = []  # of every call that has not ended

        def load_before(module: nn.Module, args: Any) -> None:
            loaded_by_call.append(not self._paused and not self._is_loaded(module))
            if loaded_by_call[-1]:
                self.load(module)

        def unload_after(module: nn.Module, args: Any, output: Any) -> None:
            if loaded_by_call.pop():
                self.unload(module)

        return (
            submodule.register_forward_pre_hook(load_before, prepend=True),
            submodule.register_forward_hook(unload_after, always_call=True),
        )

    def _is_loaded(self, submodule: nn.Module) -> bool:
        return self._unloaded.isdisjoint(self._names_in(submodule))

    def checkpoint_names(self, *submodules: nn.Module) -> set[str]:
        """The checkpoint's names of what these parts are made of."""
        stored_names = {
            self._stored_name(name)
            for submodule in submodules
            for name in self._names_in(submodule)
        }
        return {source for name in stored_names if name for source in self._sources[name]}

    def _prefix(self, submodule: nn.Module) -> str:
        name = self._module_names[id(submodule)]
        return f"{name}." if name else ""

    def _names_in(self, submodule: nn.Module) -> list[str]:
        prefix = self._prefix(submodule)
        return [name for name in self._names if name.startswith(prefix)]

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, leaf = name.rpartition(".")
        return self.module.get_submodule(path), leaf

    def _stored_name(self, name: str) -> str | None:
        """Which of the names that share a weight the checkpoint has."""
        names = (name, *self._tied_names.get(name, ()))
        return next((candidate for candidate in names if candidate in self._sources), None)

    def _is_empty(self, name: str) -> bool:
        owner, leaf = self._owner(name)
        parameter = owner._parameters.get(leaf)
        return parameter is None or parameter.is_meta

    def _load_untied(self, name: str) -> None:
        """Read what `name` shares with another module, for it alone."""
        owner, leaf = self._owner(name)
        stored_name = self._stored_name(name)
        assert stored_name is not None
        tied_owner, tied_leaf = self._owner(stored_name)
        previous, empty = tied_owner._parameters[tied_leaf], owner._parameters[leaf]
        tied_owner._parameters[tied_leaf] = empty
        self._read_tensors([stored_name])
        owner._parameters[leaf], tied_owner._parameters[tied_leaf] = (
            tied_owner._parameters[tied_leaf],
            previous,
        )
        assert owner._parameters[leaf] is not None and empty is not None
        owner._parameters[leaf].requires_grad_(empty.requires_grad)  # type: ignore[union-attr]
        self._unloaded.discard(name)

    def _load_names(self, names: Iterable[str], *, tie: bool = True) -> None:
        stored_names = {self._stored_name(name) for name in names if name in self._unloaded} - {
            None
        }
        to_load = sorted(str(name) for name in stored_names)
        if not to_load:
            return
        requires_grad = {name: _requires_grad(*self._owner(name)) for name in to_load}
        self._read_tensors(to_load)
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
        self._unloaded -= set(to_load)

    def _read_tensors(self, names: list[str]) -> None:
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        dtype = self.module.dtype
        config = LoadStateDictConfig(
            device_map={"": self.device},
            dtype=dtype,
            dtype_plan=self.module._get_dtype_plan(dtype),
            weight_mapping=_weight_conversions(self.module),
        )
        sources = {source for name in names for source in self._sources[name]}
        tensors = {source: _LazyTensor(self.checkpoint, source) for source in sources}
        with torch.inference_mode(False), _progress_bar_disabled():
            info, _ = convert_and_load_state_dict_in_model(self.module, tensors, config)
        path = self.checkpoint.path
        _check_complete(self.module, path, (n for n in names if n in info.missing_keys))
        _check_complete(self.module, path, (n for n, *_ in info.mismatched_keys), "mismatched")


class _LazyTensor:
    """A stored tensor, read when transformers takes it: `tensor[...]`."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.checkpoint, self.name = checkpoint, name

    def __getitem__(self, index: Any) -> Tensor:
        shard, info = self.checkpoint.tensors[self.name]
        if info.dtype in DTYPES:
            stored = self.checkpoint.tensor(self.name)
            check_finite([self.name], stored, self.checkpoint)  # here a GPU need not wait for it
            return stored
        from safetensors import safe_open

        with safe_open(shard.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(self.name)
            return tensor


def auto_class(checkpoint: Checkpoint) -> Any:
    """The class of transformers that loads a checkpoint of its type."""
    import transformers

    return getattr(transformers, checkpoint.family.auto_class(checkpoint.config))


def empty_model(
    checkpoint: Checkpoint,
    staging_directory: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Any:
    """The model as `from_pretrained` would make it of the directory `shown`, with its parameters on
    `meta`; buffers that no checkpoint holds are there."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        staging_directory, local_files_only=True, trust_remote_code=False
    )
    stored_dtype = getattr(config.get_text_config(), "dtype", None) or _first_stored_dtype(
        checkpoint
    )
    with init_empty_weights(include_buffers=False):
        module = auto_class(checkpoint).from_config(
            config, dtype=dtype or stored_dtype, trust_remote_code=False
        )
    for submodule in module.modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None:
                submodule._buffers[name] = buffer.to(device or "cpu")
    return module.eval()


def _first_stored_dtype(checkpoint: Checkpoint) -> torch.dtype:
    dtypes = (tensor.dtype for _, tensor in checkpoint.tensors.values())
    return next((DTYPES[dtype] for dtype in dtypes if dtype in DTYPES), torch.float32)


def _weight_conversions(module: Any) -> list[Any]:
    from transformers.conversion_mapping import get_model_conversion_mapping

    return list(get_model_conversion_mapping(module))


def _source_names(module: Any, checkpoint: Checkpoint) -> dict[str, list[str]]:
    """For every tensor of the model, those of the checkpoint that it is made of."""
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    rules, model_names = _weight_conversions(module), module.state_dict()
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    targets = {
        pattern: rule.target_patterns for rule in converters for pattern in rule.source_patterns
    }
    sources: dict[str, list[str]] = defaultdict(list)
    for source in checkpoint.tensors:
        name, pattern = rename_source_key(
            source, renamings, converters, module.base_model_prefix, model_names
        )
        if name not in model_names and source in model_names:
            name, pattern = source, None
        first, *others = targets.get(pattern, [""])
        for target in (name, *(name.replace(first, other) for other in others)):
            if target in model_names:
                sources[target].append(source)
    return sources


def _tied_names(module: Any) -> dict[str, list[str]]:
    """The other names of each weight that several modules share."""
    groups: dict[str, set[str]] = defaultdict(set)
    tied: Mapping[str, str] = module.get_expanded_tied_weights_keys(all_submodels=True)
    for target, source in tied.items():
        groups[source] |= {source, target}
    return {name: sorted(group - {name}) for group in groups.values() for name in group}


def _requires_grad(owner: nn.Module, leaf: str) -> bool:
    parameter = owner._parameters.get(leaf)
    return parameter is not None and parameter.requires_grad


def _check_complete(module: Any, path: Any, names: Iterator[str], problem: str = "missing") -> None:
    ignored = [*(getattr(module, "_keys_to_ignore_on_load_missing", None) or ())]
    affected = sorted(n for n in names if not any(re.search(pattern, n) for pattern in ignored))
    if affected:
        raise StatetrimError(
            f"{path} does not fit its own config: {len(affected)} {problem} tensors, the first is "
            f"{affected[0]}"
        )


@contextmanager
def _progress_bar_disabled() -> Iterator[None]:
    """Without a bar for every layer."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
