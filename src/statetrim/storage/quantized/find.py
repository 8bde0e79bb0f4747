"""Find quantised weights among the tensors of a checkpoint, by their names, dtypes and shapes.

The names are those of transformers' fine-grained FP8, compressed-tensors and NVIDIA ModelOpt.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from ...errors import StatetrimError
from ..safetensors_file import DTYPE_BITS, TensorInfo
from .element import FP4, FP8, INT4, INT8, Element

_ELEMENTS = {"F8_E4M3": FP8, "I8": INT8, "U8": FP4, "I32": INT4}
_SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E4M3")
_ACTIVATION_SCALES = ("input_scale", "input_global_scale", "activation_scale")
_UNSUPPORTED = ("weight_zero_point", "weight_g_idx")
"""Tensors of schemes that cannot be cut: asymmetric, or with columns in another order."""
_PACKED_TENSORS = {
    "qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_zero_point", "weight_g_idx",
    "weight_scale", "weight_scale_inv", "absmax", "quant_map", "_weight_qdata", "_weight_scale",
}  # fmt: skip
"""Names of GPTQ, AWQ, bitsandbytes, torchao and compressed-tensors."""


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight [rows, columns] whose elements are codes, with a scale for each block of them.

    A value is that of its code, times its block's scale, times the global scale if there is one
    (divided by it if `global_divides`). The other fields name stored tensors.
    """

    name: str  # as it would be called without quantisation
    element: Element
    shape: tuple[int, int]
    block: tuple[int, int]
    codes: TensorInfo
    scales: TensorInfo
    global_scale: str | None = None
    global_divides: bool = False
    stored_shape: str | None = None  # the tensor that holds `shape`

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The stored tensors that depend on the weight."""
        names = (self.codes.name, self.scales.name, self.global_scale, self.stored_shape)
        return tuple(name for name in names if name is not None)

    @property
    def codes_shape(self) -> tuple[int, int]:
        """The shape in which the codes are stored, as bytes or words."""
        rows, columns = self.shape
        return rows, columns * self.element.bits // DTYPE_BITS[self.codes.dtype]

    @property
    def blocks(self) -> tuple[int, int]:
        """Numbers of blocks along rows and columns."""
        (rows, columns), (height, width) = self.shape, self.block
        return ceil(rows / height), ceil(columns / width)

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The shape in which the scales are stored."""
        stored = self.scales.shape
        if len(stored) == 2:
            return self.blocks
        return stored if prod(stored) == 1 else (self.shape[0],)

    def resized(self, rows: int, columns: int) -> "QuantizedTensor":
        """The weight cut to another shape; a block that covers an axis still does."""
        height = rows if self.block[0] == self.shape[0] else self.block[0]
        width = columns if self.block[1] == self.shape[1] else self.block[1]
        step = DTYPE_BITS[self.codes.dtype] // self.element.bits
        if step > 1 and width < columns:
            step = max(step, width)
        if columns % step:
            raise StatetrimError(
                f"tensor {self.name[:200]!r} would keep {columns} columns, but {self.scheme} "
                f"needs a multiple of {step}; keep another width, or quantise after the cut"
            )
        return replace(self, shape=(rows, columns), block=(height, width))

    @property
    def scheme(self) -> str:
        """What a person reads, such as "FP8, a scale for 128 x 128"."""
        rows, columns = self.block
        if self.block == self.shape:
            extent = "a tensor"
        elif rows == 1 and columns == self.shape[1]:
            extent = "a row"
        else:
            extent = f"{rows} x {columns}"
        return f"{self.element.name}, a scale for {extent}"


def find_quantized_tensors(
    tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> dict[str, QuantizedTensor]:
    """Name without quantisation -> the quantised weight, for all that are stored in a known way."""
    quantized: dict[str, QuantizedTensor] = {}
    block_size = _block_size(config)
    for codes in tensors.values():
        prefix, _, leaf = codes.name.rpartition(".")
        if leaf not in ("weight", "weight_packed") or codes.dtype not in _ELEMENTS:
            continue
        if len(codes.shape) != 2 or any(f"{prefix}.{name}" in tensors for name in _UNSUPPORTED):
            continue
        for scale_leaf in ("weight_scale_inv", "weight_scale"):
            scales = tensors.get(f"{prefix}.{scale_leaf}")
            if scales is not None and scales.dtype in _SCALE_DTYPES:
                quantized[f"{prefix}.weight"] = _describe(
                    prefix, codes, scales, tensors, block_size
                )
    return quantized


def describe_schemes(weights: Mapping[str, QuantizedTensor]) -> str:
    """How many weights are stored by each scheme, as text; "none" without any."""
    counts = Counter(weight.scheme for weight in weights.values())
    return "; ".join(f"{count} of {scheme}" for scheme, count in counts.most_common()) or "none"


def is_packed(name: str) -> bool:
    """Whether a tensor belongs to a quantised weight, by its name, also of schemes not read."""
    return name.rpartition(".")[2] in _PACKED_TENSORS


def quantization_method(config: Mapping[str, Any]) -> str:
    """The quantiser that the config names; empty without one."""
    section = config.get("quantization_config")
    return str(section.get("quant_method", ""))[:60] if isinstance(section, dict) else ""


def is_activation_scale(name: str) -> bool:
    """Whether a tensor scales activations, so that no cut of a weight changes it."""
    return name.rpartition(".")[2] in _ACTIVATION_SCALES


def _describe(
    prefix: str,
    codes: TensorInfo,
    scales: TensorInfo,
    tensors: Mapping[str, TensorInfo],
    block_size: tuple[int, int] | None,
) -> QuantizedTensor:
    element = _ELEMENTS[codes.dtype]
    rows, columns = codes.shape[0], codes.shape[1] * (DTYPE_BITS[codes.dtype] // element.bits)
    block = _block(scales, rows, columns, block_size)
    global_scale = None
    for leaf in ("weight_scale_2", "weight_global_scale"):
        name = f"{prefix}.{leaf}"
        if name in tensors and prod(tensors[name].shape) == 1:
            global_scale = name
    if (element is FP4) != (global_scale is not None):
        raise StatetrimError(
            f"tensor {codes.name[:200]!r} is stored as {codes.dtype} "
            f"{'without' if element is FP4 else 'with'} a global scale, which is no known scheme"
        )
    stored_shape = f"{prefix}.weight_shape"
    return QuantizedTensor(
        f"{prefix}.weight",
        element,
        (rows, columns),
        block,
        codes,
        scales,
        global_scale,
        global_scale is not None and global_scale.endswith("weight_global_scale"),
        stored_shape if stored_shape in tensors else None,
    )


def _block(
    scales: TensorInfo, rows: int, columns: int, block_size: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns that share a scale; StatetrimError if the scales' shape fits none."""
    shape = scales.shape
    if prod(shape) == 1:
        return rows, columns
    if shape in ((rows,), (rows, 1)):
        return 1, columns
    if block_size is not None:
        if shape == (ceil(rows / block_size[0]), ceil(columns / block_size[1])):
            # No larger than the weight: memory is allocated by whole blocks.
            return min(rows, block_size[0]), min(columns, block_size[1])
    elif len(shape) == 2 and shape[0] == rows and shape[1] and columns % shape[1] == 0:
        return 1, columns // shape[1]
    raise StatetrimError(
        f"tensor {scales.name[:200]!r} has shape {list(shape)}, which does not fit a weight of "
        f"{rows} x {columns}"
    )


def _block_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """The block that the config names: `weight_block_size`, or a group's `block_structure`."""
    section = config.get("quantization_config")
    section = section if isinstance(section, dict) else {}
    named = [section.get("weight_block_size")]
    groups = section.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        named.append(weights.get("block_structure") if isinstance(weights, dict) else None)
    for sizes in named:
        if sizes is None:
            continue
        is_pair = isinstance(sizes, list) and len(sizes) == 2
        if not is_pair or not all(type(size) is int and 0 < size <= 4096 for size in sizes):
            raise StatetrimError(f"config.json has a block size that is no pair: {sizes!r:.60}")
        return sizes[0], sizes[1]
    return None
