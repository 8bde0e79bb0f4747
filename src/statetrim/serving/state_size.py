"""Bytes of the state of one sequence."""

from dataclasses import dataclass

from ..families.contract import text_config
from ..geometry import Geometry
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

    @property
    def total(self) -> int:
        return self.state_bytes + self.conv_bytes

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
    for config in (model.config, text_config(model.config)):
        dtype = config.get("dtype") or config.get("torch_dtype")
        if isinstance(dtype, str) and dtype in DTYPE_BYTES:
            return dtype
    return "bfloat16"


def served_dtype(model: Checkpoint) -> str:
    """The dtype in which engines serve the model: as stored, but bfloat16 instead of float32,
    because vLLM and SGLang convert it to 16 bits."""
    stored = stored_dtype(model)
    return "bfloat16" if stored == "float32" else stored
