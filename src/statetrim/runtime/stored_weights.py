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
        self._places = {id(part): name for name, part in module.named_modules()}
        self._names = list(module.state_dict())
        self._sources = _sources(module, checkpoint)
        self._twins = _twins(module)
        self._absent = set(self._names)
        self._hooks: dict[int, tuple[RemovableHandle, ...]] = {}
        self._paused = False
        _check_complete(module, checkpoint.path, (n for n in self._names if not self._stored(n)))

    def bring(self, part: nn.Module) -> None:
        """Read what `part` needs and does not have yet."""
        self._bring(self._names_in(part))

    def bring_own(self, part: nn.Module) -> None:
        """The same of its own parameters, not of those of modules within it."""
        depth = self._prefix(part).count(".")
        own = [name for name in self._names_in(part) if name.count(".") == depth]
        self._bring(own)

    def let_go(self, part: nn.Module) -> None:
        """Forget its parameters, except those that another module shares."""
        for name in self._names_in(part):
            owner, leaf = self._owner(name)
            parameter = owner._parameters.get(leaf)
            if parameter is not None and name not in self._twins:
                empty = torch.empty_like(parameter, device="meta")
                owner._parameters[leaf] = nn.Parameter(empty, parameter.requires_grad)
                self._absent.add(name)

    def stream(self, parts: Iterable[nn.Module]) -> None:
        """From now on each of `parts` is brought when it is called, and let go when it ends; what
        lies outside of them stays once it was called."""
        within = set[int]()
        for part in parts:
            within |= {id(inner) for inner in part.modules()}
            self._hooks[id(part)] = self._come_and_go(part)
        for part in self.module.modules():
            if id(part) not in within:
                part.register_forward_pre_hook(lambda module, args: self.bring_own(module))

    def settle(self, part: nn.Module) -> None:
        """Bring `part`, to stay, with weights of its own: what another module shares is read again
        for that."""
        names = [name for name in self._names_in(part) if name in self._absent]
        names = [name for name in names if self._is_empty(name)]
        shared = [name for name in names if name not in self._sources]
        self._bring(sorted({*names} - {*shared}), sharing=False)
        for name in shared:
            self._copy(name)
        for inner in part.modules():
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

    def _come_and_go(self, part: nn.Module) -> tuple[RemovableHandle, ...]:
        came: list[bool] = []  # of every call that has not ended

        def come(module: nn.Module, args: Any) -> None:
            came.append(not self._paused and not self._is_here(module))
            if came[-1]:
                self.bring(module)

        def go(module: nn.Module, args: Any, output: Any) -> None:
            if came.pop():
                self.let_go(module)

        return (
            part.register_forward_pre_hook(come, prepend=True),
            part.register_forward_hook(go, always_call=True),
        )

    def _is_here(self, part: nn.Module) -> bool:
        return self._absent.isdisjoint(self._names_in(part))

    def sources_of(self, *parts: nn.Module) -> set[str]:
        """The checkpoint's names of what these parts are made of."""
        stored = {self._stored(name) for part in parts for name in self._names_in(part)}
        return {source for name in stored if name for source in self._sources[name]}

    def _prefix(self, part: nn.Module) -> str:
        name = self._places[id(part)]
        return f"{name}." if name else ""

    def _names_in(self, part: nn.Module) -> list[str]:
        prefix = self._prefix(part)
        return [name for name in self._names if name.startswith(prefix)]

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, leaf = name.rpartition(".")
        return self.module.get_submodule(path), leaf

    def _stored(self, name: str) -> str | None:
        """Which of the names that share a weight the checkpoint has."""
        names = (name, *self._twins.get(name, ()))
        return next((each for each in names if each in self._sources), None)

    def _is_empty(self, name: str) -> bool:
        owner, leaf = self._owner(name)
        parameter = owner._parameters.get(leaf)
        return parameter is None or parameter.is_meta

    def _copy(self, name: str) -> None:
        """Read what `name` shares with another module, for it alone."""
        owner, leaf = self._owner(name)
        stored = self._stored(name)
        assert stored is not None
        other, twin = self._owner(stored)
        before, empty = other._parameters[twin], owner._parameters[leaf]
        other._parameters[twin] = empty
        self._load([stored])
        owner._parameters[leaf], other._parameters[twin] = other._parameters[twin], before
        assert owner._parameters[leaf] is not None and empty is not None
        owner._parameters[leaf].requires_grad_(empty.requires_grad)  # type: ignore[union-attr]
        self._absent.discard(name)

    def _bring(self, names: Iterable[str], *, sharing: bool = True) -> None:
        stored = {self._stored(name) for name in names if name in self._absent} - {None}
        wanted = sorted(str(name) for name in stored)
        if not wanted:
            return
        trained = {name: _trained(*self._owner(name)) for name in wanted}
        self._load(wanted)
        for name in wanted:
            owner, leaf = self._owner(name)
            if leaf in owner._parameters:
                value = owner._parameters[leaf]
                assert value is not None
                value.requires_grad_(trained[name])
                for twin in self._twins.get(name, ()) if sharing else ():
                    other, leaf = self._owner(twin)
                    other._parameters[leaf] = value
                    self._absent.discard(twin)
        self._absent -= set(wanted)

    def _load(self, names: list[str]) -> None:
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        dtype = self.module.dtype
        config = LoadStateDictConfig(
            device_map={"": self.device},
            dtype=dtype,
            dtype_plan=self.module._get_dtype_plan(dtype),
            weight_mapping=_conversions(self.module),
        )
        sources = {source for name in names for source in self._sources[name]}
        tensors = {source: _OnDisk(self.checkpoint, source) for source in sources}
        with torch.inference_mode(False), _quiet():
            info, _ = convert_and_load_state_dict_in_model(self.module, tensors, config)
        path = self.checkpoint.path
        _check_complete(self.module, path, (n for n in names if n in info.missing_keys))
        _check_complete(self.module, path, (n for n, *_ in info.mismatched_keys), "mismatched")


class _OnDisk:
    """A stored tensor, read when transformers takes it: `tensor[...]`."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.checkpoint, self.name = checkpoint, name

    def __getitem__(self, everything: Any) -> Tensor:
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
    shown: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Any:
    """The model as `from_pretrained` would make it of the directory `shown`, with its parameters on
    `meta`; buffers that no checkpoint holds are there."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(shown, local_files_only=True, trust_remote_code=False)
    stored = getattr(config.get_text_config(), "dtype", None) or _first_dtype(checkpoint)
    with init_empty_weights(include_buffers=False):
        module = auto_class(checkpoint).from_config(
            config, dtype=dtype or stored, trust_remote_code=False
        )
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device or "cpu")
    return module.eval()


def _first_dtype(checkpoint: Checkpoint) -> torch.dtype:
    kinds = (tensor.dtype for _, tensor in checkpoint.tensors.values())
    return next((DTYPES[kind] for kind in kinds if kind in DTYPES), torch.float32)


def _conversions(module: Any) -> list[Any]:
    from transformers.conversion_mapping import get_model_conversion_mapping

    return list(get_model_conversion_mapping(module))


def _sources(module: Any, checkpoint: Checkpoint) -> dict[str, list[str]]:
    """For every tensor of the model, those of the checkpoint that it is made of."""
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    rules, known = _conversions(module), module.state_dict()
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    targets = {
        pattern: rule.target_patterns for rule in converters for pattern in rule.source_patterns
    }
    found: dict[str, list[str]] = defaultdict(list)
    for source in checkpoint.tensors:
        name, pattern = rename_source_key(
            source, renamings, converters, module.base_model_prefix, known
        )
        if name not in known and source in known:
            name, pattern = source, None
        first, *others = targets.get(pattern, [""])
        for target in (name, *(name.replace(first, other) for other in others)):
            if target in known:
                found[target].append(source)
    return found


def _twins(module: Any) -> dict[str, list[str]]:
    """The other names of each weight that several modules share."""
    groups: dict[str, set[str]] = defaultdict(set)
    tied: Mapping[str, str] = module.get_expanded_tied_weights_keys(all_submodels=True)
    for target, source in tied.items():
        groups[source] |= {source, target}
    return {name: sorted(group - {name}) for group in groups.values() for name in group}


def _trained(owner: nn.Module, leaf: str) -> bool:
    parameter = owner._parameters.get(leaf)
    return parameter is not None and parameter.requires_grad


def _check_complete(module: Any, path: Any, names: Iterator[str], problem: str = "missing") -> None:
    ignored = [*(getattr(module, "_keys_to_ignore_on_load_missing", None) or ())]
    found = sorted(n for n in names if not any(re.search(pattern, n) for pattern in ignored))
    if found:
        raise StatetrimError(
            f"{path} does not fit its own config: {len(found)} {problem} tensors, the first is "
            f"{found[0]}"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a bar for every layer."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
