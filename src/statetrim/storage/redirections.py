"""What would have a library run other weights or code than the files that were opened."""

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
"""Fields that may name a kernel of the hub, and the values that do not."""
_WEIGHTS_FIELD = "transformers_weights"
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_REMOTE_CODE_FIELD = "auto_map"


def check_no_redirections(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that stock transformers would load otherwise than it stands here."""
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
                f"config.json has {_WEIGHTS_FIELD} = {shorten(section[_WEIGHTS_FIELD])!r}: transformers "
                f"would load that file instead of the checkpoint's own; remove the field"
            )
        for field, allowed in _KERNEL_FIELDS.items():
            for value in _kernel_names(section.get(field)):
                if value not in allowed:
                    raise StatetrimError(
                        f"config.json has {field} = {shorten(value)!r}, which may name code on the "
                        f"hub; it must be one of {', '.join(sorted(allowed))}, or be left out"
                    )


def check_run_not_quantized(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse to run quantised weights: transformers may take kernels from the hub for them."""
    for section in _nested_configs(config):
        if any(
            section.get(name) is not None for name in ("quantization_config", "compression_config")
        ):
            raise StatetrimError(
                f"{directory} is quantised, and transformers may fetch code to run it; run the "
                f"original weights, or evaluate with --engine vllm"
            )


def without_redirections(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without fields that choose code: none is needed to run the model."""
    kept = {
        name: value
        for name, value in config.items()
        if name not in _KERNEL_FIELDS and name != _REMOTE_CODE_FIELD
    }
    return {
        name: without_redirections(value) if isinstance(value, dict) else value
        for name, value in kept.items()
    }


def _nested_configs(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and those inside it, of its text and vision models."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _nested_configs(value)


def _kernel_names(value: Any) -> list[str]:
    """One for the whole model, or one for each of its parts."""
    values = value.values() if isinstance(value, dict) else [value]
    return [str(name) for name in values if name is not None]
