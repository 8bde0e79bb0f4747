"""TRITON_INTERPRET=1 python triton_bfloat16.py      # triton 3.8, 3.9; no GPU needed"""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(a, b, outs, n: tl.constexpr):
    at = tl.arange(0, n)[:, None] * n + tl.arange(0, n)[None, :]
    x, y = tl.load(a + at), tl.load(b + at)
    tl.store(outs + at, tl.dot(x, y))
    tl.store(outs + n * n + at, (x * y).to(tl.float32))
    tl.store(outs + 2 * n * n + at, (x.to(tl.float32) * 1.01).to(tl.bfloat16).to(tl.float32))


a, b = torch.randn(2, 16, 16, dtype=torch.bfloat16, generator=torch.manual_seed(0))
outs = torch.empty(3, 16, 16)
kernel[(1,)](a, b, outs, 16)
expected = a.float() @ b.float(), a * b, (a.float() * 1.01).bfloat16()
for name, computed, right in zip(("dot", "a * b", "to bfloat16"), outs, expected, strict=True):
    print(name, "largest difference", float((computed - right).abs().max()))
