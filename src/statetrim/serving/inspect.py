"""What the state costs to serve: bytes per sequence, before and after a cut."""

from dataclasses import asdict, dataclass
from typing import Any

from ..errors import StatetrimError
from ..families.contract import resized_config
from ..geometry import KERNEL_TILE, Geometry, resolve_keep
from ..storage.checkpoint import Checkpoint, check_values
from ..storage.models import ModelLike, opened
from .deployment import Deployment, deployment

FP32 = 4
_CONV_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class StateSize:
    """One sequence's memory in the linear-attention layers."""

    head_k_dim: int
    head_v_dim: int
    state_bytes: int  # recurrent state, fp32 in every engine by default
    conv_bytes: int  # convolution state, in the model's dtype

    @property
    def total(self) -> int:
        return self.state_bytes + self.conv_bytes

    @staticmethod
    def of(geometry: Geometry, conv_dtype: str) -> "StateSize":
        return StateSize(
            geometry.head_k_dim,
            geometry.head_v_dim,
            geometry.state_numel * FP32,
            geometry.conv_numel * _CONV_BYTES[conv_dtype],
        )


@dataclass(frozen=True)
class StateReport:
    """What `inspect` tells of a model."""

    model_type: str
    layers: int
    total_layers: int | None
    num_k_heads: int
    num_v_heads: int
    parameters: int  # 0: only the config was at hand
    parameters_after: int
    conv_dtype: str
    before: StateSize
    after: StateSize | None
    warnings: list[str]
    deployment: Deployment

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect(
    model: ModelLike,
    keep: int | float | str | None = None,
    keep_values: int | float | str | None = None,
    *,
    memory_gib: float | None = None,
    context: int | None = None,
) -> StateReport:
    """Describe a model's state, and what it would be with `keep` key channels and `keep_values`
    value channels per head.

    With `memory_gib` of cache it also tells how many sequences of `context` tokens fit.
    """
    if context is not None and memory_gib is None:
        raise StatetrimError("--context goes with --memory-gib, the memory of the cache in GiB")
    model = opened(model)
    dtype = stored_dtype(model)
    after = None
    warnings = []
    refusal = model.family.refusal(model.config)
    if refusal:
        warnings.append(f"cannot be pruned: {refusal}")
    elif keep is not None or keep_values is not None:
        after = _resized(model, keep, keep_values)
        for width in sorted({after.head_k_dim, after.head_v_dim}):
            if width % KERNEL_TILE:
                warnings.append(
                    f"kernels pad {width} channels to a multiple of {KERNEL_TILE}: "
                    f"memory shrinks, time does not"
                )
    return StateReport(
        model_type=str(model.config.get("model_type")),
        layers=len(model.geometry.layers),
        total_layers=_total_layers(model),
        num_k_heads=model.geometry.num_k_heads,
        num_v_heads=model.geometry.num_v_heads,
        parameters=model.parameters,
        parameters_after=_parameters_after(model, after) if after else model.parameters,
        conv_dtype=dtype,
        before=StateSize.of(model.geometry, dtype),
        after=StateSize.of(after, dtype) if after else None,
        warnings=warnings,
        deployment=deployment(model, after, dtype=dtype, memory_gib=memory_gib, context=context),
    )


def _resized(
    model: Checkpoint, keep: int | float | str | None, keep_values: int | float | str | None
) -> Geometry:
    geometry = model.geometry
    if keep_values is not None:
        check_values(model)
    after = geometry.resized(
        None if keep is None else resolve_keep(keep, geometry.head_k_dim),
        None if keep_values is None else resolve_keep(keep_values, geometry.head_v_dim),
    )
    resized_config(model.family, model.config, after)
    return after


def _parameters_after(model: Checkpoint, after: Geometry) -> int:
    """Stored parameters less the dropped rows; every claimed row loses its part of the channels."""
    if not model.parameters:
        return 0
    lost = 0
    for name, owner in model.claims.items():
        _, tensor = model.tensors[name]
        for claim in owner.claims:
            dropped = claim.rows.shape[0] * (claim.rows.shape[1] - after.channels(claim.axis))
            columns = 1
            for dim, size in enumerate(tensor.shape):
                columns *= 1 if dim == claim.dim else size
            lost += dropped * columns
    return model.parameters - lost


def _total_layers(model: Checkpoint) -> int | None:
    text = model.config.get("text_config")
    for config in (model.config, text if isinstance(text, dict) else {}):
        for value in (config.get("num_hidden_layers"), config.get("layers_block_type")):
            if isinstance(value, int):
                return value
            if isinstance(value, list):
                return len(value)
    return None


def stored_dtype(model: Checkpoint) -> str:
    """The model's dtype: of its weights, else by its config, else bfloat16."""
    stored = [tensor for _, tensor in model.tensors.values()]
    largest = max(stored, key=lambda tensor: tensor.nbytes, default=None)
    if largest is not None and largest.dtype in _STORED:
        return _STORED[largest.dtype]
    text = model.config.get("text_config")
    for config in (model.config, text if isinstance(text, dict) else {}):
        dtype = config.get("dtype") or config.get("torch_dtype")
        if isinstance(dtype, str) and dtype in _CONV_BYTES:
            return dtype
    return "bfloat16"
