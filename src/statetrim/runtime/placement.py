"""Where a model runs, and in which dtype: the options that all commands share.

torch is imported where it is needed, so that the command line can read these options without it.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import StatetrimError
from ..options import derive, option, options

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")
_UNITS = {"": 1, "mib": 2**20, "gib": 2**30, "mb": 10**6, "gb": 10**9}
_WEIGHTS_SHARE = 0.9  # of a GPU's free memory for weights; activations need the rest

MaxMemory = str | Mapping[int | str, int | str]


@options
class OneDevice:
    """A device, and the dtype of the weights."""

    device: "str | torch.device | None" = option(
        default=None, help="Device: cpu, cuda or cuda:1; by default the first GPU."
    )
    dtype: "str | torch.dtype | None" = option(
        default=None, help="float32, float16 or bfloat16; by default as stored."
    )

    def check(self) -> None:
        if isinstance(self.dtype, str) and self.dtype not in DTYPES:
            raise StatetrimError(
                f"--dtype is float32, float16 or bfloat16, not {self.dtype[:40]!r}"
            )

    @property
    def placement(self) -> "Placement":
        """Where models run, without the other options of a command."""
        return derive(Placement, self, layerwise=bool(getattr(self, "layerwise", False)))

    @property
    def torch_dtype(self) -> "torch.dtype | None":
        import torch

        return getattr(torch, self.dtype) if isinstance(self.dtype, str) else self.dtype

    @property
    def dtype_text(self) -> str:
        """The dtype as records store it, such as `torch.bfloat16`, or else `stored`."""
        return str(self.torch_dtype) if self.torch_dtype else "stored"


@options
class Devices(OneDevice):
    """One device, or all GPUs."""

    device_map: str | None = option(
        default=None, help="'auto' spreads a model over all GPUs, layer by layer."
    )
    max_memory: MaxMemory | None = option(
        default=None, help="Memory to use on each GPU with --device-map, such as 0=70GiB,1=40GiB."
    )

    def check(self) -> None:
        super().check()
        if self.device_map not in (None, "auto"):
            raise StatetrimError(f"a device map is 'auto', or left out, not {self.device_map!r}")
        layerwise = getattr(self, "layerwise", False)
        if self.device_map and (self.device is not None or layerwise):
            other = "--layerwise" if layerwise else f"--device {self.device}"
            raise StatetrimError(
                f"a device map spreads the model over all GPUs, so {other} does not go with it"
            )
        if self.max_memory is not None and self.device_map is None:
            raise StatetrimError("--max-memory limits a device map; add --device-map auto")
        _parse_max_memory(self.max_memory)  # refuses other text

    @property
    def input_device(self) -> "torch.device":
        """Where inputs go, and all weights of a model that is not spread. Refuses a device that
        this machine does not have."""
        if self.device_map or self.device is None:
            return default_device()
        return _parse_device(self.device)

    @property
    def num_gpus(self) -> int:
        """GPUs that one model is spread over: all with a device map, else 1."""
        import torch

        return max(1, torch.cuda.device_count()) if self.device_map else 1

    @property
    def gpu_memory(self) -> dict[int, int]:
        """Bytes per GPU index that weights may take with a device map: `max_memory`, or 90% of what
        is free now. Main memory is not offered: weights there would be copied to a GPU for every
        batch. Refuses a device map without a GPU."""
        import torch

        if not torch.cuda.is_available():
            raise StatetrimError(
                "--device-map auto spreads a model over GPUs, and there is none here"
            )
        gpus = range(torch.cuda.device_count())
        free = {gpu: int(_WEIGHTS_SHARE * torch.cuda.mem_get_info(gpu)[0]) for gpu in gpus}
        return _parse_max_memory(self.max_memory) or free

    @property
    def free_memory(self) -> int:
        """Bytes free where models run: on one GPU, in main memory (all of it if this is not Linux),
        or with a device map the sum over GPUs of what weights may take."""
        import torch

        if self.device_map is not None:
            return sum(self.gpu_memory.values())
        if self.input_device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.input_device)[0])
        try:
            with open("/proc/meminfo") as file:
                fields = dict(line.split(":", 1) for line in file)
            return int(fields["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def from_pretrained_kwargs(self) -> dict[str, Any]:
        """Arguments of `from_pretrained` that load weights directly onto their devices."""
        if self.device_map is None:
            return {"device_map": {"": self.input_device}}
        return {"device_map": "auto", "max_memory": self.gpu_memory}


@options
class Placement(Devices):
    """Devices, and whether the weights are loaded there at once; the default is the stored dtype on
    the first GPU, or the CPU."""

    layerwise: bool = option(
        default=False, help="Stream weights from disk, for models larger than memory."
    )


def default_device() -> "torch.device":
    """The first GPU, under torchrun the one of this process's local rank; the CPU without one."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def _parse_device(requested: "str | torch.device") -> "torch.device":
    """The device of an option; refuses one that this machine does not have. "cpu:0" becomes "cpu":
    moving a Parameter to cpu:0 returns a plain Tensor."""
    import torch

    device: torch.device | None = None
    with suppress(RuntimeError):
        device = torch.device(requested)
    if device is None or device.type == "meta":
        raise StatetrimError(f"--device is cpu, cuda or cuda:1, not {str(requested)[:40]!r}")
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            gpus_text = f"has {count} GPUs" if count else "has no GPU"
            raise StatetrimError(f"{device} was asked for, and this machine {gpus_text}")
        return torch.device("cuda", device.index or 0)
    return device


def _parse_max_memory(max_memory: MaxMemory | None) -> dict[int, int] | None:
    """Bytes by GPU index, from "0=70GiB,1=40GiB" or a mapping; None for None. A size without a unit
    is in bytes. Refuses other text."""
    if max_memory is None:
        return None
    if isinstance(max_memory, str):
        items = max_memory.split(",")
    else:
        items = [f"{gpu}={size}" for gpu, size in max_memory.items()]
    sizes = dict[int, int]()
    for item in items:
        gpu, _, size = (part.strip() for part in item.partition("="))
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", size.lower())
        if not gpu.isdecimal() or match is None or match.group(2) not in _UNITS:
            raise StatetrimError(
                f"--max-memory names GPUs and their memory, such as 0=70GiB,1=40GiB, not "
                f"{f'{gpu}={size}'[:60]!r}"
            )
        sizes[int(gpu)] = int(float(match.group(1)) * _UNITS[match.group(2)])
    return sizes
