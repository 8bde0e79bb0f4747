"""Sizes of the state before and after a cut, each in float32 and in bfloat16."""

from typing import Any

from ..geometry import Geometry
from ..maths.formatting import bytes_text, choices_text
from ..serving.capacity.compare import alternatives


def state_size_text(before: Geometry, after: Geometry) -> str:
    """The state's bytes per sequence before and after the cut, in both dtypes, as a sentence."""
    original, original_bfloat16, cut, cut_bfloat16 = (
        bytes_text(row.state_bytes) for row in alternatives(before, after)
    )
    return (
        f"recurrent state per sequence: {original} -> {cut} in float32; {original_bfloat16} -> "
        f"{cut_bfloat16} in bfloat16 (an engine option, with or without the cut)"
    )


def state_json(before: Geometry, after: Geometry) -> dict[str, Any]:
    """Widths and bytes of the state before and after the cut, for JSON."""
    sizes = [row.state_bytes for row in alternatives(before, after)]
    return {
        "head_k_dim": [before.head_k_dim, after.head_k_dim],
        "head_v_dim": [before.head_v_dim, after.head_v_dim],
        "state_bytes": sizes[0::2],
        "state_bytes_bfloat16": sizes[1::2],
    }


def tensor_parallel_text(before: Geometry, after: Geometry) -> str:
    """Over how many devices the remaining heads can be divided, as a sentence."""
    return (
        f"tensor parallelism: {after.num_k_heads} key heads can be shared by "
        f"{choices_text(map(str, after.tensor_parallel))} devices "
        f"(before: {choices_text(map(str, before.tensor_parallel))})"
    )
