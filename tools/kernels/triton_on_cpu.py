"""Run Triton kernels on a CPU, in Triton's interpreter.

    import triton_on_cpu
    triton_on_cpu.install()            # before anything imports triton

    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    triton_on_cpu.mend_modules("fla.")  # after the modules with kernels are imported

The interpreter computes every value that a kernel stores, with NumPy, thousands of times slower
than a GPU. It finds wrong indices, masks and arithmetic. It does not show what a GPU adds: tf32,
races between blocks, the order of sums, alignment, compilation, speed.

Five things stop the kernels of fla, vLLM and SGLang in the interpreter of the KNOWN_VERSIONS, and
are mended here:

- Autotuning times configurations on a GPU. Here the first one is taken.
- `tl.dot` multiplies the bits of bfloat16 numbers as integers (docs/upstream). Here they are
  widened to float32 first.
- A counter of `for i in range(n)` is a Python integer, without `.to(tl.int64)`.
- Functions of `tl` are replaced while a kernel runs, so a name bound earlier (`exp = tl.exp`) would
  call the compiler's function.
- Kernels are launched on the current GPU. Here `torch.cuda.device` does nothing.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

KNOWN_VERSIONS = ("3.8", "3.9")
"""Versions of Triton whose interpreter these changes were tried with."""


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
    dot = interpreter.InterpreterBuilder.create_dot
    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(
        self, _widened(a), _widened(b), *rest
    )
    torch.cuda.device = contextlib.nullcontext  # type: ignore[assignment,misc]


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
            if getattr(value, "__triton_builtin__", False) and id(value) in names:
                members[own_name] = _looked_up_when_called(names[id(value)])
        if any(isinstance(value, KernelInterface) for value in members.values()):
            members["range"] = _range_of_counters


def _widened(handle: Any) -> Any:
    """The interpreter's block of bfloat16, which it stores as uint16, as one of float32."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype("uint32") << 16
    return TensorHandle(bits.view("float32"), tl.float32)


class _Counter(int):
    def to(self, dtype: Any, **options: Any) -> int:
        return int(self)


def _range_of_counters(*bounds: Any) -> Iterator[_Counter]:
    for number in builtins.range(*(_plain(bound) for bound in bounds)):
        yield _Counter(number)


def _plain(bound: Any) -> int:
    return int(bound.handle.data.item()) if hasattr(bound, "handle") else int(bound)


def _looked_up_when_called(name: str) -> Callable[..., Any]:
    import triton.language as tl

    return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)
