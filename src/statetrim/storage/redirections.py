"""Fields and files by which a library would run other weights or code than the checkpoint's."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import shorten

_ATTENTION_KERNELS = {
    "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4",
    "flex_attention",
}  # fmt: skip
_EXPERT_KERNELS = {"eager", "batched_mm", "grouped_mm"}
_KERNEL_FIELDS = {
    "attn_implementation": _ATTENTION_KERNELS,
    "_attn_implementation": _ATTENTION_KERNELS,
    "_attn_implementation_internal": _ATTENTION_KERNELS,
    "experts_implementation": _EXPERT_KERNELS,
    "_experts_implementation": _EXPERT_KERNELS,
    "_experts_implementation_internal": _EXPERT_KERNELS,
}
"""Config field that may name a kernel on the hub -> values that are kernels of the library."""
_WEIGHTS_FIELD = "transformers_weights"
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_REMOTE_CODE_FIELD = "auto_map"
_QUANTIZATION_FIELDS = ("quantization_config", "compression_config")


def check_no_redirections(directory: Path, config: Mapping[str, Any]) -> None:
    """Raise StatetrimError if transformers would load other weights, an adapter or hub kernels."""
    for name in _ADAPTER_FILES:
        if (directory / name).exists() or (directory / name).is_symlink():
            raise StatetrimError(
                f"{directory} holds {name}: transformers would apply that adapter, so the "
                f"weights that run would not be those in the files; merge it into them "
                f"or move it away"
            )
    for section in _nested_configs(config):
        if section.get(_WEIGHTS_FIELD) is not None:
            raise StatetrimError(
                f"config.json has {_WEIGHTS_FIELD} = {shorten(section[_WEIGHTS_FIELD])!r}: "
                f"transformers would load that file instead of the checkpoint's own; "
                f"remove the field"
            )
        for field, allowed in _KERNEL_FIELDS.items():
            named = section.get(field)  # one name, or a name per submodel
            for value in named.values() if isinstance(named, dict) else [named]:
                if value is not None and str(value) not in allowed:
                    raise StatetrimError(
                        f"config.json has {field} = {shorten(value)!r}, which may name code on the "
                        f"hub; it must be one of {', '.join(sorted(allowed))}, or be left out"
                    )


def without_redirections(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config without the fields that choose kernels or remote code (`auto_map`).

    Nested configs are copied so too. The model runs without these fields, also a quantised one:
    its weights are dequantised on loading, so that no kernel for them is fetched from the hub.
    """
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if name not in (*_KERNEL_FIELDS, *_QUANTIZATION_FIELDS, _REMOTE_CODE_FIELD):
            kept[name] = without_redirections(value) if isinstance(value, dict) else value
    return kept


def _nested_configs(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and all configs nested in it, such as those of text and vision models."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _nested_configs(value)
