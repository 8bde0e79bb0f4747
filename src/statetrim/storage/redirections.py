"""What would have a library run other weights or code than the files that were opened."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import shorten

_ATTENTION = {
    "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4",
    "flex_attention",
}  # fmt: skip
_EXPERTS = {"eager", "batched_mm", "grouped_mm"}
_KERNELS = {
    "attn_implementation": _ATTENTION,
    "_attn_implementation": _ATTENTION,
    "_attn_implementation_internal": _ATTENTION,
    "experts_implementation": _EXPERTS,
    "_experts_implementation": _EXPERTS,
    "_experts_implementation_internal": _EXPERTS,
}
"""Fields that may name a kernel of the hub, and the values that do not."""
_OTHER_WEIGHTS = "transformers_weights"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_REMOTE_CODE = "auto_map"


def refuse_redirections(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that stock transformers would load otherwise than it stands here."""
    for name in _ADAPTER:
        if (directory / name).exists() or (directory / name).is_symlink():
            raise StatetrimError(
                f"{directory} holds {name}: transformers would apply that adapter, so the "
                f"weights that run would not be those in the files; merge it into them "
                f"or move it away"
            )
    for part in _parts(config):
        if part.get(_OTHER_WEIGHTS) is not None:
            raise StatetrimError(
                f"config.json has {_OTHER_WEIGHTS} = {shorten(part[_OTHER_WEIGHTS])!r}: transformers "
                f"would load that file instead of the checkpoint's own; remove the field"
            )
        for field, known in _KERNELS.items():
            for value in _values(part.get(field)):
                if value not in known:
                    raise StatetrimError(
                        f"config.json has {field} = {shorten(value)!r}, which may name code on the "
                        f"hub; it must be one of {', '.join(sorted(known))}, or be left out"
                    )


def refuse_quantized_run(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse to run quantised weights: transformers may take kernels from the hub for them."""
    for part in _parts(config):
        if any(
            part.get(name) is not None for name in ("quantization_config", "compression_config")
        ):
            raise StatetrimError(
                f"{directory} is quantised, and transformers may fetch code to run it; run the "
                f"original weights, or evaluate with --engine vllm"
            )


def without_redirections(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without fields that choose code: none is needed to run the model."""
    left = {
        name: value
        for name, value in config.items()
        if name not in _KERNELS and name != _REMOTE_CODE
    }
    return {
        name: without_redirections(value) if isinstance(value, dict) else value
        for name, value in left.items()
    }


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and those inside it, of its text and vision models."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _parts(value)


def _values(value: Any) -> list[str]:
    """One for the whole model, or one for each of its parts."""
    several = value.values() if isinstance(value, dict) else [value]
    return [str(one) for one in several if one is not None]
