"""Bytes of the state of one sequence; before and after a cut for tables, sentences and JSON."""

from dataclasses import dataclass
from typing import Any

from ..cut.geometry import Geometry
from ..maths.formatting import change_row, choices_text, count_of, relative_change_text
from ..storage.checkpoint import Checkpoint

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class StateSize:
    """One sequence's memory in the linear-attention layers."""

    head_k_dim: int
    head_v_dim: int
    shape: str  # keys x values of a head, for each kind of layer
    state_bytes: int  # recurrent state in float32
    conv_bytes: int  # convolution state, in the model's dtype
    num_k_heads: int
    num_v_heads: int
    tensor_parallel: list[int]  # numbers of devices that divide the heads

    @staticmethod
    def from_geometry(geometry: Geometry, conv_dtype: str) -> "StateSize":
        """The size of a state in float32 with a convolution state in `conv_dtype`."""
        return StateSize(
            geometry.head_k_dim,
            geometry.head_v_dim,
            geometry.shape,
            geometry.state_numel * DTYPE_BYTES["float32"],
            geometry.conv_numel * DTYPE_BYTES[conv_dtype],
            geometry.num_k_heads,
            geometry.num_v_heads,
            geometry.tensor_parallel,
        )


def weight_bytes(model: Checkpoint) -> int:
    """Bytes of all tensors of the checkpoint."""
    return sum(tensor.nbytes for _, tensor in model.tensors.values())


def stored_dtype(model: Checkpoint) -> str:
    """The dtype of the model's largest tensor, else of its config, else bfloat16; always one of
    float32, float16 and bfloat16, so that others are passed over."""
    if model.tensors:
        _, largest = max(model.tensors.values(), key=lambda item: item[1].nbytes)
        if largest.dtype in SAFETENSORS_DTYPES:
            return SAFETENSORS_DTYPES[largest.dtype]
    for config in (model.config, model.text_config):
        dtype = config.get("dtype") or config.get("torch_dtype")
        if isinstance(dtype, str) and dtype in DTYPE_BYTES:
            return dtype
    return "bfloat16"


def served_dtype(model: Checkpoint) -> str:
    """As stored, but bfloat16 for float32, because vLLM and SGLang convert it to 16 bits."""
    stored = stored_dtype(model)
    return "bfloat16" if stored == "float32" else stored


def state_rows(before: Geometry, after: Geometry) -> list[tuple[str, ...]]:
    """Rows of the shape, the bytes in float32 and bfloat16, and key heads if they change."""
    shapes = before.describe_against(after), after.describe_against(before)
    old, new = before.state_numel, after.state_numel
    rows = [
        ("state of a head, keys x values", *shapes, relative_change_text(old, new)),
        change_row("state per sequence, float32", 4 * old, 4 * new),
        change_row("the same in bfloat16", 2 * old, 2 * new),
    ]
    if before.num_k_heads != after.num_k_heads:
        rows.append(change_row("key heads", before.num_k_heads, after.num_k_heads, "heads"))
    return rows


def state_text(before: Geometry, after: Geometry, *, with_bfloat16: bool = True) -> str:
    """The bytes of a sequence's state before and after a cut, for people."""
    _, (_, *float32, change), (_, *bfloat16, _), *_ = state_rows(before, after)
    text = f"state per sequence: {' → '.join(float32)} in float32"
    if with_bfloat16:
        text += f", {' → '.join(bfloat16)} in bfloat16"
    return f"{text} ({change or 'no change'})"


def state_json(before: Geometry, after: Geometry) -> dict[str, Any]:
    """Widths and bytes of the state before and after the cut, for JSON."""
    old, new = before.state_numel, after.state_numel
    return {
        "head_k_dim": [before.head_k_dim, after.head_k_dim],
        "head_v_dim": [before.head_v_dim, after.head_v_dim],
        "state_bytes": [4 * old, 4 * new],
        "state_bytes_bfloat16": [2 * old, 2 * new],
    }


def tensor_parallel_text(before: Geometry, after: Geometry) -> str:
    """Over how many devices the remaining heads can be divided, as a sentence."""
    return (
        f"tensor parallelism: {count_of(after.num_k_heads, 'key head')} can be divided among "
        f"{choices_text(after.tensor_parallel)} device{'s' * (after.num_k_heads > 1)} "
        f"(before: {choices_text(before.tensor_parallel)})"
    )
