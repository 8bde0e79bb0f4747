"""Small checkpoints whose linear layers are quantised, in the layouts of public releases.

compressed-tensors quantises its own formats. Fine-grained FP8 (Qwen, DeepSeek) and ModelOpt
(NVIDIA) are written from the loaders of transformers and vLLM.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from torch import Tensor

from helpers import tiny
from statetrim.storage.quantized.find import QuantizedTensor, find_quantized_tensors
from statetrim.storage.quantized.read import StoredInMemory
from statetrim.storage.safetensors_file import read_shard

Quantize = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class Format:
    """A way to quantise a weight: the tensors that take its place, and the config."""

    quantize: Quantize
    config: dict[str, Any]
    exact: bool  # whether rows and columns can be removed without quantising again


def fine_grained(block: int) -> Format:
    def quantize(weight: Tensor) -> dict[str, Tensor]:
        scales = largest_by_block(weight, block) / 448
        values = weight / spread(scales, block, weight)
        return {"weight": values.to(torch.float8_e4m3fn), "weight_scale_inv": scales}

    config = {"quant_method": "fp8", "weight_block_size": [block, block], "fmt": "e4m3"}
    return Format(quantize, config, False)


def modelopt_fp8(by_row: bool) -> Format:
    def quantize(weight: Tensor) -> dict[str, Tensor]:
        largest = weight.abs().amax(1) if by_row else weight.abs().amax()
        scale = largest / 448
        values = (weight / (scale[:, None] if by_row else scale)).to(torch.float8_e4m3fn)
        stored = {"weight": values, "weight_scale": scale}
        return stored if by_row else stored | {"input_scale": torch.tensor(0.5)}

    algorithm = "FP8_PER_CHANNEL_PER_TOKEN" if by_row else "FP8"
    return Format(quantize, {"quant_method": "modelopt", "quant_algo": algorithm}, True)


def compressed(layout: str, exact: bool, **arguments: Any) -> Format:
    """A format of compressed-tensors; the library itself computes scales and codes."""
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=layout)
    compressor = BaseCompressor.get_value_from_registry(layout)

    def quantize(weight: Tensor) -> dict[str, Tensor]:
        global_scale = None
        lowest, highest = by_group(weight, args)
        state: dict[str, Tensor] = {"weight": weight}
        if layout.startswith("nvfp4"):
            global_scale = generate_gparam(weight.min(), weight.max()).reshape(1)
            state["weight_global_scale"] = global_scale
        scale, zero = calculate_qparams(lowest, highest, args, global_scale)
        state |= {"weight_scale": scale, "weight_zero_point": zero}
        stored: dict[str, Tensor] = compressor.compress(state, scheme)
        stored.pop("weight_zero_point", None)
        return stored

    group: dict[str, Any] = {"targets": ["Linear"], "weights": args.model_dump(mode="json")}
    group["format"] = layout  # without it, transformers expects packed codes for int8
    groups = {"group_0": group}
    config = {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}
    config["quantization_status"] = "compressed"
    return Format(quantize, config, exact)


def modelopt_nvfp4() -> Format:
    """As compressed-tensors, under other names; the global scale is the inverse."""
    nvfp4 = FORMATS["nvfp4"]

    def quantize(weight: Tensor) -> dict[str, Tensor]:
        stored = nvfp4.quantize(weight)
        return {
            "weight": stored["weight_packed"],
            "weight_scale": stored["weight_scale"],
            "weight_scale_2": (1 / stored["weight_global_scale"]).reshape(()),
            "input_scale": torch.tensor(0.5),
        }

    return Format(quantize, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, False)


def by_group(weight: Tensor, args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    """The least and largest value of each group that shares a scale, in the scales' shape."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        return weight.amin().reshape(1), weight.amax().reshape(1)
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if strategy == "block":
        largest = largest_by_block(weight, args.block_structure[0])
        return -largest, largest
    groups = torch.unflatten(weight, 1, (-1, args.group_size))
    return groups.amin(2), groups.amax(2)


def largest_by_block(weight: Tensor, block: int) -> Tensor:
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % block, 0, -rows % block))
    rows_of_blocks = torch.unflatten(padded, 1, (-1, block))
    return torch.unflatten(rows_of_blocks, 0, (-1, block)).abs().amax((1, 3))


def spread(scales: Tensor, block: int, weight: Tensor) -> Tensor:
    full = scales.repeat_interleave(block, 0).repeat_interleave(block, 1)
    return full[: weight.shape[0], : weight.shape[1]]


INT4: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True}
INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True}
NVFP4: dict[str, Any] = {
    "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
    "group_size": 16, "scale_dtype": torch.float8_e4m3fn,
}  # fmt: skip
FORMATS: dict[str, Format] = {
    "fine-grained fp8": fine_grained(16),
    "fp8 by tensor": compressed("float-quantized", True, **FLOAT8, strategy="tensor"),
    "fp8 by row": compressed("float-quantized", True, **FLOAT8, strategy="channel"),
    "fp8 by block": compressed(
        "float-quantized", False, **FLOAT8, strategy="block", block_structure=[16, 16]
    ),
    "modelopt fp8": modelopt_fp8(by_row=False),
    "modelopt fp8 by row": modelopt_fp8(by_row=True),
    "int8 by row": compressed("int-quantized", True, **INT8, strategy="channel"),
    "int4 by row": compressed("pack-quantized", True, **INT4, strategy="channel"),
    "w4a16": compressed("pack-quantized", False, **INT4, strategy="group", group_size=16),
    "w8a16": compressed("pack-quantized", False, **INT8, strategy="group", group_size=16),
    "nvfp4": compressed("nvfp4-pack-quantized", False, **NVFP4),
}
FORMATS["modelopt nvfp4"] = modelopt_nvfp4()


def in_memory(tensors: dict[str, Tensor]) -> StoredInMemory:
    """The stored tensors of the weight `a.weight`."""
    return StoredInMemory({f"a.{leaf}": value.contiguous() for leaf, value in tensors.items()})


def find(stored: StoredInMemory, form: Format, directory: Path) -> QuantizedTensor:
    """The description of `a.weight` after its tensors were written to a file."""
    save_file(dict(stored.tensors), directory / "a.safetensors")
    infos = {info.name: info for info in read_shard(directory / "a.safetensors").tensors}
    return find_quantized_tensors(infos, {"quantization_config": form.config})["a.weight"]


def quantize_checkpoint(
    source: Path, out: Path, form: Format, only: Callable[[str], bool] = lambda name: True
) -> Path:
    """A copy of a checkpoint with its linear layers quantised, but not the head and small gates."""
    out.mkdir()
    for path in source.iterdir():
        if path.is_file() and "safetensors" not in path.name:
            (out / path.name).write_bytes(path.read_bytes())
    tensors: dict[str, Tensor] = {}
    unquantized: list[str] = []
    for name, value in tiny.tensors(source).items():
        if is_quantized(name, value) and only(name):
            prefix = name.removesuffix("weight")
            stored = form.quantize(value.float())
            tensors |= {prefix + leaf: part.contiguous() for leaf, part in stored.items()}
        else:
            tensors[name] = value
            if value.ndim == 2 and name.endswith(".weight") and "embed" not in name:
                unquantized.append(name.removesuffix(".weight"))
    write_shards(tensors, out)
    config = json.loads((source / "config.json").read_text())
    field = "modules_to_not_convert" if form.config["quant_method"] == "fp8" else "ignore"
    config["quantization_config"] = form.config | {field: [*unquantized, "lm_head"]}
    (out / "config.json").write_text(json.dumps(config))
    return out


def write_shards(tensors: dict[str, Tensor], directory: Path) -> None:
    """Two files, with scales far from their codes."""
    files: dict[str, dict[str, Tensor]] = {"a.safetensors": {}, "b.safetensors": {}}
    weight_map = {}
    for name, value in tensors.items():
        file = "a.safetensors" if name.endswith("scale") else "b.safetensors"
        files[file][name], weight_map[name] = value.contiguous(), file
    for file, content in files.items():
        save_file(content, directory / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def is_quantized(name: str, value: Tensor) -> bool:
    linear = name.endswith("proj.weight") or name.endswith(("in_proj_qkv.weight", "_z.weight"))
    return linear and value.ndim == 2 and min(value.shape) >= 16
