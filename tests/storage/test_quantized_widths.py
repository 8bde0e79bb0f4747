"""Every quantised format, group size and kept width: a cut is refused, or compressed-tensors reads
it as statetrim does, with an error no larger than that of quantising the cut.

A sample runs always; `just quantised-widths` runs all.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

import statetrim as st
from helpers import quantized
from helpers.quantized import FLOAT8, FORMATS, INT4, INT8, Format, compressed, find
from statetrim.storage.quantized.read import StoredInMemory, dequantize
from statetrim.storage.quantized.rewrite import (
    check_written,
    collect_all,
    cut_quantized,
    edited_rows,
    is_exact,
)
from statetrim.storage.safetensors_file import TensorEdit

ROWS, HEADS, WIDTH = 48, 4, 64
GROUPS = (16, 32, 64, 128)
FACTORS = (None, 1.0, 1e3, 1e-5, 1e-6)  # of the columns: sizes of a norm that is multiplied in


def all_forms() -> Iterator[tuple[str, Format]]:
    for size in GROUPS:
        yield f"fine-grained FP8 {size}x{size}", quantized.fine_grained(size)
        blocks = {"strategy": "block", "block_structure": [size, size]}
        yield f"FP8 {size}x{size}", compressed("float-quantized", False, **FLOAT8, **blocks)
    layouts = {
        "FP8": ("float-quantized", FLOAT8), "INT8": ("int-quantized", INT8),
        "packed INT8": ("pack-quantized", INT8), "packed INT4": ("pack-quantized", INT4),
    }  # fmt: skip
    for name, (layout, arguments) in layouts.items():
        for strategy in ("tensor", "channel"):
            yield f"{name} {strategy}", compressed(layout, True, **arguments, strategy=strategy)
        for size in GROUPS:
            group = {"strategy": "group", "group_size": size}
            yield f"{name} group {size}", compressed(layout, False, **arguments, **group)
    for name in ("nvfp4", "modelopt nvfp4", "modelopt fp8", "modelopt fp8 by row"):
        yield name, FORMATS[name]


FORMS = dict(all_forms())


def test_the_library_reads_a_sample_of_cuts(tmp_path: Path) -> None:
    accepted = 0
    for number, form in enumerate(FORMS.values()):
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        for kept in (1 + number % 3, 8 + number % 5, 32, 40):
            factor = FACTORS[(number + kept) % len(FACTORS)]
            accepted += is_accepted(form, kept, factor, dtype, tmp_path)
    assert accepted > 60


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMS)
def test_the_library_reads_every_cut(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    for factor in FACTORS:
        for kept in range(1, WIDTH + 1):
            is_accepted(FORMS[name], kept, factor, dtype, tmp_path)


def is_accepted(
    form: Format, kept: int, factor: float | None, dtype: torch.dtype, directory: Path
) -> bool:
    """Cut a weight of `HEADS` heads to `kept` channels each, and assert what the module says; False
    if the cut was refused."""
    generator = torch.Generator().manual_seed(kept)
    weight = torch.randn(ROWS, HEADS * WIDTH, generator=generator).to(dtype)
    stored = {f"a.{leaf}": value.contiguous() for leaf, value in form.quantize(weight).items()}
    tensor = find(StoredInMemory(stored), form, directory)
    values = library_values(stored, form, tensor.shape)
    source = StoredInMemory(stored)
    assert_read_alike(dequantize(tensor, source), values, form)
    edit = random_edit(kept, factor, generator)
    exact = is_exact(tensor, edit)
    assert exact or factor is not None or not form.exact
    try:
        changed = collect_all(cut_quantized(tensor, edit, source), source)
    except st.StatetrimError as refusal:
        assert "needs a multiple of" in str(refusal)
        assert HEADS * kept % tensor.column_step
        return False
    written, wanted = stored | changed, edited(values, edit)
    again = find(StoredInMemory(written), form, directory)
    assert again.shape == wanted.shape and again.scheme == tensor.scheme
    rows = edited_rows(tensor, edit, source)
    try:
        check_written(again, rows, StoredInMemory(written), exact=exact)
    except st.StatetrimError:
        assert dtype is torch.float16 and factor is not None  # its scales hold no smaller number
        assert float(wanted.abs().max()) / 448 < 2**-14 or float(wanted.abs().max()) > 2**15
        return False
    read = library_values(written, form, again.shape)
    assert_read_alike(dequantize(again, StoredInMemory(written)), read, form)
    error = float((read - wanted).norm() / wanted.norm())
    quantised_again = {f"a.{leaf}": x for leaf, x in form.quantize(wanted).items()}  # in float32
    quantiser_error = float((library_values(quantised_again, form, again.shape) - wanted).norm())
    quantiser_error /= float(wanted.norm())
    luck = 1.02 if dtype is torch.float32 else 1.1  # how scales of 16 bits are rounded
    if float(written[tensor.scales.name].float().min()) < float(torch.finfo(dtype).tiny):
        luck = 3  # below its normal numbers float16 has few bits; `check_written` is the bound
    assert error <= (0 if exact else luck * quantiser_error) + rounding(form)
    return True


def random_edit(kept: int, factor: float | None, generator: torch.Generator) -> TensorEdit:
    """Other channels of each head, and two thirds of the rows."""
    order = torch.rand(HEADS, WIDTH, generator=generator).argsort(1)
    rows = torch.rand(ROWS, generator=generator).argsort() < 2 * ROWS // 3
    factors = None
    if factor is not None:
        factors = factor * torch.rand(HEADS * WIDTH, generator=generator, dtype=torch.float64)
    return TensorEdit({0: rows, 1: (order < kept).flatten()}, factors)


def edited(values: Tensor, edit: TensorEdit) -> Tensor:
    if edit.column_factors is not None:
        values = values.double() * edit.column_factors
    return values[edit.masks[0]][:, edit.masks[1]].float()


def library_values(stored: dict[str, Tensor], form: Format, shape: tuple[int, int]) -> Tensor:
    """What compressed-tensors reads, computed in float32; the other layouts under its names."""
    leaves = {name.removeprefix("a."): value for name, value in stored.items()}
    for leaf in ("weight_scale", "weight_scale_inv"):
        if leaf in leaves and leaves[leaf].dtype in (torch.bfloat16, torch.float16):
            leaves[leaf] = leaves[leaf].float()
    if "config_groups" in form.config:
        arguments = form.config["config_groups"]["group_0"]["weights"]
        layout = form.config["format"]
    elif form.config["quant_method"] == "fp8":
        blocks = form.config["weight_block_size"]
        arguments, layout = FLOAT8 | {"strategy": "block", "block_structure": blocks}, "float"
        leaves["weight_scale"] = leaves.pop("weight_scale_inv")
    elif form.config["quant_algo"] == "NVFP4":
        arguments, layout = quantized.NVFP4, "nvfp4-pack"
        leaves["weight_packed"] = leaves.pop("weight")
        leaves["weight_global_scale"] = 1 / leaves.pop("weight_scale_2").reshape(1)
    else:
        by_row = leaves["weight_scale"].dim() == 1
        arguments, layout = FLOAT8 | {"strategy": "channel" if by_row else "tensor"}, "float"
        leaves["weight_scale"] = leaves["weight_scale"].reshape((-1, 1) if by_row else 1)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    layout = layout if layout.endswith("quantized") else f"{layout}-quantized"
    compressor = BaseCompressor.get_value_from_registry(layout)
    read: Tensor = compressor.decompress(leaves, scheme)["weight"]
    assert read.shape == shape
    return read.float()


def assert_read_alike(actual: Tensor, expected: Tensor, form: Format) -> None:
    torch.testing.assert_close(actual, expected, rtol=rounding(form), atol=0)


def rounding(form: Format) -> float:
    """Of the library, which computes NVFP4 in bfloat16."""
    return 2**-7 if "nvfp4" in str(form.config).lower() else 1e-6
