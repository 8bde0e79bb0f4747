"""Small kernels that Triton's interpreter alone runs wrongly or not at all, in a process of their
own: prints, as JSON, the largest difference of each from the expected values."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "kernels"))
import triton_on_cpu

if __name__ == "__main__":
    triton_on_cpu.install()

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

bound_early = tl.exp
WIDTH = 16


@triton.jit
def _bfloat16(a: Any, b: Any, dot: Any, product: Any, rounded: Any, n: tl.constexpr) -> None:
    index = tl.arange(0, n)
    at = index[:, None] * n + index[None, :]
    x, y = tl.load(a + at), tl.load(b + at)
    tl.store(dot + at, tl.dot(x, y))
    tl.store(product + at, x * y)
    tl.store(rounded + at, (x.to(tl.float32) * 1.01).to(tl.bfloat16))


@triton.jit
def _counted(out: Any, count: Any) -> None:
    for i in range(count):
        tl.store(out + (i * 1 + 0).to(tl.int64), i)


@triton.jit
def _exponential(x: Any, out: Any, n: tl.constexpr) -> None:
    index = tl.arange(0, n)
    tl.store(out + index, bound_early(tl.load(x + index)))


@triton.jit
def _masked(x: Any, out: Any, number: Any, n: tl.constexpr) -> None:
    index = tl.arange(0, n)
    tl.store(out + index, libdevice.log1p(tl.load(x + index)), mask=(index < n) & (number == n))


@triton.autotune([triton.Config({"step": 1}), triton.Config({"step": 2})], key=["n"])
@triton.jit
def _autotuned(out: Any, n: tl.constexpr, step: tl.constexpr) -> None:
    tl.store(out + tl.arange(0, n), step)


def _grid(arguments: dict[str, Any]) -> tuple[int]:
    arguments["out"] = torch.zeros(1)  # as vLLM's convolution does, with the tensor it passed
    return (1,)


def main() -> dict[str, float]:
    triton_on_cpu.mend_modules("__main__")
    torch.manual_seed(0)
    a, b = torch.randn(2, WIDTH, WIDTH, dtype=torch.bfloat16)
    dot, (product, rounded) = torch.empty(WIDTH, WIDTH), torch.empty_like(torch.stack([a, b]))
    x, exponential, logarithm = torch.rand(WIDTH), torch.empty(WIDTH), torch.empty(WIDTH)
    counts, steps = torch.full((WIDTH,), -1), torch.zeros(WIDTH)
    _bfloat16[(1,)](a, b, dot, product, rounded, WIDTH)
    _counted[_grid](counts, WIDTH)
    _exponential[(1,)](x, exponential, WIDTH)
    _masked[(1,)](x, logarithm, WIDTH, WIDTH)
    _autotuned[(1,)](steps, WIDTH)
    return {
        "bfloat16 dot": float((dot - a.double() @ b.double()).abs().max()),
        "bfloat16 product": float((product - a * b).abs().max()),
        "bfloat16 rounding": float((rounded - (a.float() * 1.01).bfloat16()).abs().max()),
        "loop counter, grid function": float((counts - torch.arange(WIDTH)).abs().max()),
        "name bound early": float((exponential - x.exp()).abs().max()),
        "mask of a comparison, libdevice": float((logarithm - x.log1p()).abs().max()),
        "first configuration": float((steps - 1).abs().max()),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
