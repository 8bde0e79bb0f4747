"""TRITON_INTERPRET=1 python triton_interpreter.py      # triton 3.8, 3.9; no GPU needed"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

exp = tl.exp


@triton.jit
def counter(out, n):
    for i in range(n):
        tl.store(out + i.to(tl.int64), i)


@triton.jit
def bound_early(out, n):
    tl.store(out, exp(tl.load(out)))


@triton.jit
def library(out, n):
    tl.store(out, libdevice.log1p(tl.load(out)) + 1)


@triton.jit
def mask(out, n):
    index = tl.arange(0, 4)
    tl.store(out + index, 1.0, mask=(index < n) & (n == 4))


def grid(arguments):
    arguments["out"] = arguments["out"].clone()
    return (1,)


kernels = (counter, bound_early, library, mask)
for kernel, blocks in (*((kernel, (1,)) for kernel in kernels), (counter, grid)):
    try:
        kernel[blocks](torch.zeros(4), 4)
    except Exception as error:
        print(kernel.fn.__name__, "grid function" if blocks is grid else "", error)
