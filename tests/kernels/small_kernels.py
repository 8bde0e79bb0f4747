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

bound_early = tl.exp
WIDTH = 16


@triton.jit
def _product(a: Any, b: Any, out: Any, n: tl.constexpr) -> None:
    index = tl.arange(0, n)
    at = index[:, None] * n + index[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def _counted(out: Any, count: Any) -> None:
    for i in range(count):
        tl.store(out + i.to(tl.int64), i)


@triton.jit
def _exponential(x: Any, out: Any, n: tl.constexpr) -> None:
    index = tl.arange(0, n)
    tl.store(out + index, bound_early(tl.load(x + index)))


@triton.autotune([triton.Config({"step": 1}), triton.Config({"step": 2})], key=["n"])
@triton.jit
def _autotuned(out: Any, n: tl.constexpr, step: tl.constexpr) -> None:
    tl.store(out + tl.arange(0, n), step)


def main() -> dict[str, float]:
    triton_on_cpu.mend_modules("__main__")
    torch.manual_seed(0)
    a, b = torch.randn(2, WIDTH, WIDTH, dtype=torch.bfloat16)
    product, x, exponential = torch.empty(WIDTH, WIDTH), torch.randn(WIDTH), torch.empty(WIDTH)
    counts, steps = torch.full((WIDTH,), -1), torch.zeros(WIDTH)
    _product[(1,)](a, b, product, WIDTH)
    _counted[(1,)](counts, WIDTH)
    _exponential[(1,)](x, exponential, WIDTH)
    _autotuned[(1,)](steps, WIDTH)
    return {
        "bfloat16 dot": float((product - a.double() @ b.double()).abs().max()),
        "loop counter": float((counts - torch.arange(WIDTH)).abs().max()),
        "name bound early": float((exponential - x.exp()).abs().max()),
        "first configuration": float((steps - 1).abs().max()),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
