"""What a config says of quantised weights: their elements, and the elements that share a scale."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import StatetrimError
from .element import FP4, FP8, INT4, INT8, PACKED_INT8, Element

MAX_BLOCK = 4096
_ELEMENTS = {
    ("F8_E4M3", "float", 8): FP8,
    ("U8", "float", 4): FP4,
    ("I8", "int", 8): INT8,
    ("I32", "int", 8): PACKED_INT8,
    ("I32", "int", 4): INT4,
}
"""Stored dtype, type and bits -> element."""
CODE_DTYPES = frozenset(dtype for dtype, _, _ in _ELEMENTS)


@dataclass(frozen=True)
class Scheme:
    """Type and bits of an element, and the rows and columns that share a scale (None: all).

    A scale of the last rows or columns may cover fewer, unless `whole`.
    """

    type: str  # "float" or "int"
    bits: int
    rows: int | None
    columns: int | None
    whole: bool = False

    def element(self, dtype: str) -> Element | None:
        """The element, if codes are stored as `dtype`; None if that is not known."""
        return _ELEMENTS.get((dtype, self.type, self.bits))

    def block(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale in a weight of this shape, no more than it has:
        memory is allocated by whole blocks."""
        return min(rows, self.rows or rows), min(columns, self.columns or columns)


_TENSOR, _ROW = (None, None), (1, None)
_SELF_DESCRIBED = (
    *(Scheme(type, 8, *extent) for type in ("float", "int") for extent in (_TENSOR, _ROW)),
    Scheme("float", 4, 1, 16, whole=True),
)
"""Those that tensors alone show, as ModelOpt's configs do not describe them all."""


def schemes_in(config: Mapping[str, Any]) -> tuple[Scheme, ...]:
    """The schemes that a config names, without those that are not read."""
    section = config.get("quantization_config")
    if not isinstance(section, dict):
        return _SELF_DESCRIBED
    if section.get("transform_config"):
        raise StatetrimError(
            "config.json has a transform_config: its quantised weights are rotated, which is not "
            "read; prune the unquantised weights and quantise the result"
        )
    sizes, groups = section.get("weight_block_size"), section.get("config_groups")
    if sizes is not None:
        return (Scheme("float", 8, *_block_size(sizes)),)
    if not isinstance(groups, dict) or not groups:
        return _SELF_DESCRIBED
    schemes: list[Scheme] = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("symmetric", True) is True:
            schemes += _schemes_of_group(weights)
    return tuple(dict.fromkeys(schemes))


def _schemes_of_group(weights: Mapping[str, Any]) -> Iterator[Scheme]:
    """The schemes that one entry of `config_groups` may mean, with compressed-tensors' defaults;
    ModelOpt leaves it to the tensors whether a scale belongs to a row."""
    type, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    if not isinstance(type, str) or not isinstance(bits, int):
        return
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if strategy in ("group", "tensor_group") or (strategy is None and size not in (None, -1)):
        yield Scheme(type, bits, 1, _group_size(size), whole=True)
    elif strategy == "block":
        yield Scheme(type, bits, *_block_size(weights.get("block_structure")))
    if strategy == "tensor" or (strategy is None and size is None):
        yield Scheme(type, bits, *_TENSOR)
    if strategy == "channel" or (strategy is None and size in (None, -1)):
        yield Scheme(type, bits, *_ROW)


def _group_size(size: Any) -> int:
    if not _is_size(size):
        raise StatetrimError(f"config.json has a group size that is none: {size!r:.60}")
    return int(size)


def _block_size(sizes: Any) -> tuple[int, int]:
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(map(_is_size, sizes)):
        raise StatetrimError(f"config.json has a block size that is no pair: {sizes!r:.60}")
    return sizes[0], sizes[1]


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_BLOCK
