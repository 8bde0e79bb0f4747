"""TRITON_INTERPRET=1 python triton_interpreter.py      # triton 3.8, 3.9; no GPU needed"""

import torch
import triton
import triton.language as tl

exp = tl.exp


@triton.jit
def counter(out, n):
    for i in range(n):
        tl.store(out + i.to(tl.int64), i)


@triton.jit
def bound_early(out, n):
    tl.store(out, exp(tl.load(out)))


def grid(arguments):
    arguments["out"] = arguments["out"].clone()
    return (1,)


for kernel, blocks in ((counter, (1,)), (bound_early, (1,)), (counter, grid)):
    try:
        kernel[blocks](torch.zeros(4), 4)
    except Exception as error:
        print(kernel.fn.__name__, "grid function" if blocks is grid else "", error)
