"""Find quantised weights among the tensors of a checkpoint: config and headers must agree on one
description, by which a weight is read and a cut of it is written.

The names are those of transformers' fine-grained FP8, compressed-tensors and NVIDIA ModelOpt.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, lcm, prod
from typing import Any

from ...errors import StatetrimError
from ..safetensors_file import DTYPE_BITS, TensorInfo
from .scheme import CODE_DTYPES, FP4, Element, Scheme, schemes_in

_SCALE_DTYPES = ("F32", "BF16", "F16")
_FP4_SCALE_DTYPE = "F8_E4M3"
_ACTIVATION_SCALES = ("input_scale", "input_global_scale", "activation_scale")
_UNSUPPORTED = ("weight_zero_point", "weight_g_idx", "pre_quant_scale")
"""Tensors of schemes that cannot be cut: asymmetric, with columns in another order, or with scaled
inputs."""
_PACKED_TENSORS = {
    "qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_zero_point", "weight_g_idx",
    "weight_scale", "weight_scale_inv", "absmax", "quant_map", "_weight_qdata", "_weight_scale",
    "pre_quant_scale",
}  # fmt: skip
"""Names of GPTQ, AWQ, bitsandbytes, torchao, ModelOpt and compressed-tensors."""


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight [rows, columns] whose elements are codes, with a scale for each block of them.

    A value is that of its code, times its block's scale, times the global scale if there is one
    (divided by it if `global_divides`). The other fields name stored tensors.
    """

    name: str  # as it would be called without quantisation
    scheme: Scheme
    element: Element
    shape: tuple[int, int]
    codes: TensorInfo
    scales: TensorInfo
    global_scale: str | None = None
    global_divides: bool = False
    stored_shape: str | None = None  # the tensor that holds `shape`

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        return self.scheme.block(*self.shape)

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

    @property
    def column_step(self) -> int:
        """The number of columns is a multiple of it: whole words of codes, and whole groups."""
        step = DTYPE_BITS[self.codes.dtype] // self.element.bits
        return lcm(step, self.scheme.columns or 1) if self.scheme.whole else step

    def resized(self, rows: int, columns: int) -> "QuantizedTensor":
        """The weight cut to another shape; StatetrimError if the scheme does not hold it."""
        if columns % self.column_step:
            raise StatetrimError(
                f"tensor {self.name[:200]!r} would keep {columns} columns, but {self.description} "
                f"needs a multiple of {self.column_step}; keep another width, or quantise after "
                f"the cut"
            )
        return replace(self, shape=(rows, columns))

    @property
    def description(self) -> str:
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
    for codes in tensors.values():
        prefix, _, leaf = codes.name.rpartition(".")
        if leaf not in ("weight", "weight_packed") or codes.dtype not in CODE_DTYPES:
            continue
        if len(codes.shape) != 2 or 0 in codes.shape:
            continue
        if any(f"{prefix}.{name}" in tensors for name in _UNSUPPORTED):
            continue
        if leaf == "weight_packed" and f"{prefix}.weight" in tensors:
            raise StatetrimError(f"{prefix} has both weight and weight_packed; remove one of them")
        for scale_leaf in ("weight_scale_inv", "weight_scale"):
            scales = tensors.get(f"{prefix}.{scale_leaf}")
            if scales is not None and scales.dtype in (*_SCALE_DTYPES, _FP4_SCALE_DTYPE):
                quantized[f"{prefix}.weight"] = _describe(
                    prefix, codes, scales, tensors, schemes_in(config)
                )
    return quantized


def describe_schemes(weights: Mapping[str, QuantizedTensor]) -> str:
    """How many weights are stored by each scheme, as text; "none" without any."""
    counts = Counter(weight.description for weight in weights.values())
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
    schemes: tuple[Scheme, ...],
) -> QuantizedTensor:
    """The one description that config and headers allow; StatetrimError without one."""
    fitting: dict[tuple[Element, tuple[int, int]], QuantizedTensor] = {}
    for scheme in schemes:
        element = scheme.element(codes.dtype)
        if element is None:
            continue
        columns = codes.shape[1] * DTYPE_BITS[codes.dtype] // element.bits
        tensor = QuantizedTensor(
            f"{prefix}.weight", scheme, element, (codes.shape[0], columns), codes, scales
        )
        if _has_scales_for(tensor):
            fitting.setdefault((element, tensor.block), tensor)
    if len(fitting) != 1:
        rows, columns = codes.shape
        raise StatetrimError(
            f"tensor {codes.name[:200]!r} ({codes.dtype}, {rows} x {columns}) with "
            f"{scales.name[:200]!r} ({scales.dtype}, {list(scales.shape)}) fits "
            f"{'several groups' if fitting else 'no group'} of quantization_config that can be "
            f"read; prune the unquantised weights and quantise the result"
        )
    (tensor,) = fitting.values()
    return _with_global_scale_and_shape(tensor, prefix, tensors)


def _has_scales_for(tensor: QuantizedTensor) -> bool:
    """Whether there is a scale for each block, in a dtype and shape that the format has."""
    is_fp4, stored = tensor.element is FP4, tensor.scales.shape
    if is_fp4 != (tensor.scales.dtype == _FP4_SCALE_DTYPE) or tensor.shape[1] % tensor.column_step:
        return False
    return stored == tensor.scales_shape and tensor.blocks in (stored, (prod(stored), 1))


def _with_global_scale_and_shape(
    tensor: QuantizedTensor, prefix: str, tensors: Mapping[str, TensorInfo]
) -> QuantizedTensor:
    """The description with the names of a global scale and of the stored shape. FP4 must have the
    one, and packed words the other: without it their library reads none."""
    global_scale = None
    for leaf in ("weight_scale_2", "weight_global_scale"):
        info = tensors.get(f"{prefix}.{leaf}")
        if info is not None and prod(info.shape) == 1 and info.dtype in _SCALE_DTYPES:
            global_scale = info.name
    stored_shape = tensors.get(f"{prefix}.weight_shape")
    if (tensor.element is FP4) != (global_scale is not None):
        problem = f"{'without' if global_scale is None else 'with'} a global scale"
    elif (tensor.codes.dtype == "I32") != (stored_shape is not None):
        problem = f"{'without' if stored_shape is None else 'with'} a weight_shape"
    elif stored_shape is not None and (stored_shape.dtype, stored_shape.shape) != ("I64", (2,)):
        problem = f"with a weight_shape of {stored_shape.dtype} {list(stored_shape.shape)}"
    else:
        return replace(
            tensor,
            global_scale=global_scale,
            global_divides=global_scale == f"{prefix}.weight_global_scale",
            stored_shape=stored_shape.name if stored_shape else None,
        )
    raise StatetrimError(
        f"tensor {tensor.codes.name[:200]!r} is stored as {tensor.codes.dtype} {problem}, which is "
        f"no known scheme"
    )
