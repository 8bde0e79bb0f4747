"""Run Triton kernels on a CPU, in Triton's interpreter.

    import triton_on_cpu
    triton_on_cpu.install()            # before anything imports triton

    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    triton_on_cpu.mend_modules("fla.")  # after the modules with kernels are imported

The interpreter computes every value that a kernel stores, with NumPy, thousands of times slower
than a GPU. It finds wrong indices, masks and arithmetic. It does not show what a GPU adds: tf32,
races between blocks, the order of sums, alignment, compilation, speed.

Eight things stop the kernels of fla, vLLM and SGLang in the interpreter of the KNOWN_VERSIONS, and
are mended here:

- Autotuning times configurations on a GPU. Here the first one is taken.
- Arithmetic on bfloat16, `tl.dot` too, is done on the bits as if they were integers, and float32
  is cut off, not rounded, to bfloat16 (results/upstream). Here both are as on a GPU.
- A counter of `for i in range(n)` is a Python integer, without `.to(tl.int64)`; so is `i * 16`.
- Functions of `tl` are replaced while a kernel runs, so a name bound earlier (`exp = tl.exp`) would
  call the compiler's function.
- In 3.9 a comparison of two numbers keeps their type, so that a mask made of it is one of integers.
- Functions of libdevice have no body before a compiler gives them one, and return None. Here those
  in LIBDEVICE are NumPy's.
- A function that computes the grid gets the converted arguments, where vLLM's convolution puts
  tensors. Here it gets a copy of them.
- Kernels are launched on the current GPU. Here `torch.cuda.device` does nothing, nor does
  `torch.cpu.device`, which SGLang takes instead.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

KNOWN_VERSIONS = ("3.8", "3.9")
"""Versions of Triton whose interpreter these changes were tried with."""
LIBDEVICE = ("log1p", "tanh")


def install() -> None:
    """Make Triton interpret all kernels of this process; refuses an unknown version of Triton, and
    one that is imported already."""
    version = importlib.metadata.version("triton")
    if not version.startswith(tuple(f"{known}." for known in KNOWN_VERSIONS)):
        raise RuntimeError(f"triton {version} is none of {', '.join(KNOWN_VERSIONS)}")
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before, so its own functions would be compiled")
    os.environ["TRITON_INTERPRET"] = "1"

    import torch
    from triton.runtime import autotuner, interpreter

    autotuner.Autotuner._bench = lambda self, *args, config, **kwargs: [0.0, 0.0, 0.0]
    _mend_bfloat16(interpreter.InterpreterBuilder)
    _mend_masks(interpreter.InterpreterBuilder)
    _mend_libdevice()
    _patch_language_once(interpreter)
    start = interpreter.GridExecutor.__init__
    interpreter.GridExecutor.__init__ = lambda self, fn, names, grid, *rest: start(
        self, fn, names, _of_a_copy(grid) if callable(grid) else grid, *rest
    )
    torch.cuda.device = contextlib.nullcontext  # type: ignore[assignment,misc]
    torch.cpu.device = contextlib.nullcontext  # type: ignore[attr-defined]


def mend_modules(*prefixes: str) -> None:
    """Mend the imported modules whose names start with one of `prefixes`: their loops, and their
    names for functions of `tl`."""
    import triton.language as tl
    from triton.runtime.jit import KernelInterface

    names = {id(value): name for name, value in vars(tl).items() if callable(value)}
    for module_name, module in list(sys.modules.items()):
        if module is None or not module_name.startswith(prefixes):
            continue
        members = vars(module)
        for own_name, value in list(members.items()):
            if id(value) in names and getattr(value, "__triton_builtin__", False):
                members[own_name] = _looked_up_when_called(names[id(value)])
        if any(isinstance(value, KernelInterface) for value in members.values()):
            members["range"] = _range_of_counters


def _of_a_copy(grid: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda arguments: grid(dict(arguments))


@contextlib.contextmanager
def launched_kernels() -> Iterator[set[str]]:
    """Within, the names of all kernels that run are added to the set."""
    from triton.runtime.interpreter import GridExecutor

    names: set[str] = set()
    launch = GridExecutor.__call__

    def noted_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.add(self.fn.__name__)
        return launch(self, *args, **kwargs)

    GridExecutor.__call__ = noted_launch
    try:
        yield names
    finally:
        GridExecutor.__call__ = launch


def _patch_language_once(interpreter: Any) -> None:
    """Replace functions of `tl` once per kernel, and not again in every function it calls, which
    takes longer than the kernel itself."""
    import triton.language as tl

    patch = interpreter._patch_lang
    both_modules = FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    patched = []

    def patch_once(function: Any) -> Any:
        if patched:
            return interpreter._LangPatchScope()
        scope = patch(both_modules)
        restore = scope.restore
        scope.restore = lambda: (patched.clear(), restore())
        patched.append(scope)
        return scope

    interpreter._patch_lang = patch_once


def _mend_bfloat16(builder: Any) -> None:
    """Compute with bfloat16 as with numbers, in float32, and round results to the nearest."""
    import numpy
    import triton.language as tl

    binary, unary, fma, dot, cast = (
        builder.binary_op, builder.unary_op, builder.create_fma, builder.create_dot,
        builder.cast_impl,
    )  # fmt: skip

    def rounded(result: Any, *operands: Any) -> Any:
        is_number = result.data.dtype != numpy.bool_
        return _narrowed(result) if is_number and any(map(_is_bfloat16, operands)) else result

    def mended_cast(self: Any, source: Any, dtype: Any) -> Any:
        if source.dtype.scalar == dtype.scalar:
            return cast(self, source, dtype)
        if dtype.scalar == tl.bfloat16:
            return _narrowed(cast(self, source, tl.float32))
        return cast(self, _widened(source), dtype)

    builder.cast_impl = mended_cast
    builder.create_dot = lambda self, a, b, *rest: dot(self, _widened(a), _widened(b), *rest)
    builder.unary_op = lambda self, x, op: rounded(unary(self, _widened(x), op), x)
    builder.binary_op = lambda self, x, y, op: rounded(
        binary(self, _widened(x), _widened(y), op), x, y
    )
    builder.create_fma = lambda self, x, y, z: rounded(
        fma(self, _widened(x), _widened(y), _widened(z)), x, y, z
    )


def _mend_masks(builder: Any) -> None:
    """Fill a block with the result of a comparison as truth values."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    splat = builder.create_splat
    builder.create_splat = lambda self, block, x: splat(
        self, block, TensorHandle(x.data, tl.int1) if x.data.dtype == bool else x
    )


def _mend_libdevice() -> None:
    import numpy
    from triton.language.extra import libdevice

    for name in LIBDEVICE:
        setattr(libdevice, name, _of_every_value(getattr(numpy, name)))


def _of_every_value(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of NumPy as one of blocks."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return lambda x: tl.tensor(TensorHandle(function(x.handle.data), x.dtype.scalar), x.type)


def _is_bfloat16(handle: Any) -> bool:
    import triton.language as tl

    return bool(handle.dtype.scalar == tl.bfloat16)


def _widened(handle: Any) -> Any:
    """The interpreter's block of bfloat16, which it stores as uint16, as one of float32."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if not _is_bfloat16(handle):
        return handle
    bits = handle.data.astype("uint32") << 16
    return TensorHandle(bits.view("float32"), tl.float32)


def _narrowed(handle: Any) -> Any:
    """A block of float32 rounded to the nearest bfloat16, ties to even."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    bits = numpy.ascontiguousarray(handle.data).view("uint32")
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    upper = numpy.where(numpy.isnan(handle.data), 0x7FC0, nearest)
    return TensorHandle(upper.astype("uint16"), tl.bfloat16)


class _Counter(int):
    def to(self, dtype: Any, **options: Any) -> int:
        return int(self)

    def __add__(self, other: Any) -> Any:
        return _counted(int.__add__(self, other))

    def __mul__(self, other: Any) -> Any:
        return _counted(int.__mul__(self, other))


def _counted(result: Any) -> Any:
    return _Counter(result) if isinstance(result, int) else result


def _range_of_counters(*bounds: Any) -> Iterator[_Counter]:
    for number in builtins.range(*(_plain(bound) for bound in bounds)):
        yield _Counter(number)


def _plain(bound: Any) -> int:
    return int(bound.handle.data.item()) if hasattr(bound, "handle") else int(bound)


def _looked_up_when_called(name: str) -> Callable[..., Any]:
    import triton.language as tl

    return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)
