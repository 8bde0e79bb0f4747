"""Sizes of the state before and after a cut, each in float32 and in bfloat16."""

from typing import Any

from ..geometry import Geometry
from ..maths.formatting import choices_text


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
        f"tensor parallelism: {after.num_k_heads} key heads can be shared by "
        f"{choices_text(map(str, after.tensor_parallel))} devices "
        f"(before: {choices_text(map(str, before.tensor_parallel))})"
    )
