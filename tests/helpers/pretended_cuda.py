"""Pretended GPUs: tensors that report `cuda:N` as their device and hold their data on the CPU.

They raise where a real GPU would: an operation on tensors of two devices, an index from another
device, `numpy()`. Copies to the host are counted. There is no autograd, and no kernel that needs a
real GPU.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MEMORY = 80 * 2**30
_aten = torch.ops.aten
INDEXED = {
    _aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default,
    _aten._index_put_impl_.default, _aten._unsafe_index.Tensor,
}  # fmt: skip
_READ_ON_THE_HOST = ("__float__", "item", "__int__", "__bool__", "__index__", "tolist")


class DevicesMixed(RuntimeError):
    """Stands for CUDA's 'Expected all tensors to be on the same device'."""


@dataclass
class Cards:
    """Counts of copies to the host, and the pretended devices in use."""

    copies: int = 0  # to the host, including numbers that Python reads
    bytes: int = 0
    used: set[str] = field(default_factory=set)  # devices that computed something

    def copied(self, tensor: torch.Tensor) -> None:
        self.copies += 1
        self.bytes += tensor.nbytes


_cards = Cards()


class PretendedTensor(torch.Tensor):
    """A tensor with data on the CPU (`data_on_cpu`) that reports the device `pretended_device`."""

    data_on_cpu: torch.Tensor
    pretended_device: torch.device

    @staticmethod
    def __new__(cls, real: torch.Tensor, device: torch.device) -> "PretendedTensor":
        wrapper: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            layout=real.layout,
            device=device,
            requires_grad=False,
        )
        wrapper.data_on_cpu, wrapper.pretended_device = real, device
        return wrapper  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.data_on_cpu}, {self.pretended_device})"

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        """Marks a wrapper subclass for torch, so that `nn.Module.to` creates a new parameter."""
        return ["data_on_cpu"], self.pretended_device

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], device: torch.device, size: Any, stride: Any
    ) -> "PretendedTensor":
        return PretendedTensor(inner["data_on_cpu"], device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def pretended_cuda(count: int = 2, free: int = MEMORY) -> Iterator[Cards]:
    """Within, the machine has `count` GPUs with `free` bytes each."""
    global _cards
    _cards = Cards()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **_functions(count, free)))
        # also where it decorates a function; its tensors cannot be wrapped
        modes: dict[str, Any] = {"__enter__": _enter_no_grad, "__exit__": _exit_no_grad}
        stack.enter_context(mock.patch.multiple(torch.inference_mode, **modes))
        # transformers loads in threads, where the modes of this thread are not active
        stack.enter_context(mock.patch.dict("os.environ", HF_DEACTIVATE_ASYNC_LOAD="1"))
        stack.enter_context(_Dispatch())  # type: ignore[no-untyped-call]
        stack.enter_context(_Functions())
        yield _cards


def _enter_no_grad(mode: Any) -> None:
    mode.no_grad = torch.no_grad()
    mode.no_grad.__enter__()


def _exit_no_grad(mode: Any, *error: Any) -> None:
    mode.no_grad.__exit__(*error)


def on_the_host(value: torch.Tensor) -> torch.Tensor:
    """The CPU data of a tensor, without counting a copy."""
    return value.data_on_cpu if isinstance(value, PretendedTensor) else value


def _functions(count: int, free: int) -> dict[str, Any]:
    class Properties:
        major, minor, total_memory, multi_processor_count, name = 9, 0, MEMORY, 132, "pretended"

    def always(answer: Any, *names: str) -> dict[str, Any]:
        return dict.fromkeys(names, lambda *_, **__: answer)

    return {
        **always(None, "_lazy_init", "set_device", "synchronize", "empty_cache"),
        **always(None, "reset_peak_memory_stats"),
        **always(0, "current_device", "memory_allocated", "memory_reserved"),
        **always(0, "max_memory_allocated"),
        **always(True, "is_available", "is_initialized", "is_bf16_supported"),
        **always(count, "device_count"),
        **always("pretended", "get_device_name"),
        **always((free, MEMORY), "mem_get_info"),
        **always((9, 0), "get_device_capability"),
        **always(Properties(), "get_device_properties"),
        "Event": _Event,
    }


class _Event:
    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: "_Event") -> float:
        return (other.at - self.at) * 1e3


def _numbered(device: Any) -> torch.device:
    parsed = torch.device(device)
    return torch.device("cuda", parsed.index or 0) if parsed.type == "cuda" else parsed


def _wrapped(values: Any, device: torch.device) -> Any:
    def wrap(x: Any) -> Any:
        plain = isinstance(x, torch.Tensor) and not isinstance(x, PretendedTensor)
        return PretendedTensor(x, device) if plain else x

    return tree_map(wrap, values)


def _unwrapped(values: Any) -> Any:
    return tree_map(lambda x: x.data_on_cpu if isinstance(x, PretendedTensor) else x, values)


def _check_devices(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    """Raises DevicesMixed for tensors of several devices. As in CUDA, a tensor without dimensions
    may be on any device, and indices of a GPU tensor may be on the CPU."""
    if func in INDEXED:
        if not isinstance(args[0], PretendedTensor):
            raise DevicesMixed(f"a tensor on the CPU indexed with indices on a GPU in {func}")
        devices = {str(x.device) for x in tensors if x.dim() > 0 and x.device.type == "cuda"}
    else:
        devices = {str(x.device) for x in tensors if x.dim() > 0}
    if len(devices) > 1:
        raise DevicesMixed(f"tensors on {sorted(devices)} in {func}")


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    pretended = [x for x in tensors if isinstance(x, PretendedTensor)]
    device = pretended[0].pretended_device if pretended else None
    if kwargs.get("device") is not None:
        device = _numbered(kwargs["device"])
        kwargs = kwargs | {"device": torch.device("cpu")}
    moves = func in (_aten.copy_.default, _aten._to_copy.default)
    if pretended and not moves:
        _check_devices(func, args, tensors)
        _cards.used.add(str(device))
    if pretended and func is _aten._local_scalar_dense.default:
        _cards.copied(pretended[0])
    to_host = func is _aten._to_copy.default and device is not None and device.type == "cpu"
    into_host = func is _aten.copy_.default and not isinstance(args[0], PretendedTensor)
    if pretended and (to_host or into_host):
        _cards.copied(pretended[0])
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    real_args, real_kwargs = _unwrapped(args), _unwrapped(kwargs)
    if func is _aten.histc.default and not real_args[0].is_floating_point():  # CUDA counts integers
        real_args = (real_args[0].float(), *real_args[1:])
    result = func(*real_args, **real_kwargs)
    name = func._schema.name
    if name.endswith("_") and not name.endswith("__") and isinstance(args[0], torch.Tensor):
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    return result if device is None or device.type == "cpu" else _wrapped(result, device)


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercepts calls that create tensors on a GPU or copy tensors to one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        has_pretended = any(isinstance(x, PretendedTensor) for x in tree_leaves((args, kwargs)))
        if has_pretended or (device is not None and torch.device(device).type == "cuda"):
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Intercepts what never reaches the dispatcher: conversions, indexing, 'cuda' without index."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if func is torch.device:
            numbered = len(args) == 1 and isinstance(args[0], int)
            return func("cuda", *args) if numbered else func(*args, **kwargs)
        args = tuple(_with_number(x) for x in args)
        kwargs = {key: _with_number(value) for key, value in kwargs.items()}
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if name == "to" and len(args) > 1 and isinstance(args[1], int):
            args = (args[0], torch.device("cuda", args[1]), *args[2:])
        first = args[0] if args else None
        if name == "cuda" and isinstance(first, torch.Tensor):
            return first.to("cuda:0")
        if isinstance(first, PretendedTensor) and name == "numpy":
            raise TypeError(f"can't convert {first.pretended_device} device type tensor to numpy")
        if isinstance(first, PretendedTensor) and name == "data_ptr":
            return (
                first.data_on_cpu.data_ptr()
            )  # a wrapper's is 0, so all parameters would seem tied
        if isinstance(first, PretendedTensor) and name in _READ_ON_THE_HOST:
            _cards.copied(first)
            return func(first.data_on_cpu, *args[1:], **kwargs)
        if func in (torch.tensor, torch.as_tensor) and _on_a_gpu(kwargs.get("device")):
            device = _numbered(kwargs.pop("device"))
            return _wrapped(func(*args, **kwargs), device)
        if name == "copy_" and any(map(_is_pretended, args)):
            return _copy(*args)
        if name == "__getitem__":
            return _getitem(first, args[1])
        if name == "__setitem__":
            return _setitem(*args)
        return _without_cuda(func, args, kwargs)


def _with_number(x: Any) -> Any:
    if isinstance(x, str) and x == "cuda":
        return "cuda:0"
    bare = isinstance(x, torch.device) and x.type == "cuda" and x.index is None
    return torch.device("cuda", 0) if bare else x


def _on_a_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _getitem(tensor: Any, index: Any) -> Any:
    pretended_indices = [x for x in tree_leaves(index) if isinstance(x, PretendedTensor)]
    if not isinstance(tensor, PretendedTensor) and pretended_indices:
        raise DevicesMixed("a tensor on the CPU indexed with indices on a GPU")
    if any(x.pretended_device != tensor.pretended_device for x in pretended_indices):
        raise DevicesMixed("a tensor indexed with indices of another GPU")
    with torch._C.DisableTorchFunction():
        item = _unwrapped(tensor)[_unwrapped(index)]
        return PretendedTensor(item, tensor.pretended_device) if _is_pretended(tensor) else item


def _setitem(tensor: Any, index: Any, value: Any) -> None:
    if _is_pretended(value) and not _is_pretended(tensor) and value.dim() > 0:
        _cards.copied(value)  # CUDA copies it, and waits
    with torch._C.DisableTorchFunction():
        _unwrapped(tensor)[_unwrapped(index)] = _unwrapped(value)


def _copy(target: Any, source: Any, *_: Any) -> Any:
    if _is_pretended(source) and not _is_pretended(target):
        _cards.copied(source)
    with torch._C.DisableTorchFunction():
        _unwrapped(target).copy_(_unwrapped(source))
    return target


def _is_pretended(x: Any) -> bool:
    return isinstance(x, PretendedTensor)


def _without_cuda(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a function; one that needs the CUDA library before it dispatches runs on CPU data."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "not linked with support for cuda" not in str(error):
            raise
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    _check_devices(func, args, tensors)
    device = next(x.pretended_device for x in tensors if isinstance(x, PretendedTensor))
    with torch._C.DisableTorchFunction():
        return _wrapped(func(*_unwrapped(args), **_unwrapped(kwargs)), device)
