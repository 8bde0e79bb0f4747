"""SGLang 0.5.23: splitting Qwen3-Next's projection needs head widths that are powers of two.

python sglang_arange.py      # no GPU needed: compiles for sm_90, launches nothing
"""

from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

triton.runtime.driver.set_active(
    SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
        get_active_torch_device=lambda: torch.device("cpu"),
    )
)
run = JITFunction.run
JITFunction.run = lambda self, *args, **kwargs: run(self, *args, **{**kwargs, "warmup": True})

from sglang.kernels.ops.attention.triton_gdn_fused_proj import (  # noqa: E402
    fused_qkvzba_split_reshape_cat,
)

KEY_HEADS, VALUE_HEADS, TOKENS = 2, 4, 8
for head_k_dim, head_v_dim in ((128, 128), (64, 128), (96, 128), (48, 128), (96, 96)):
    width = 2 * (KEY_HEADS * head_k_dim + VALUE_HEADS * head_v_dim)
    try:
        fused_qkvzba_split_reshape_cat(
            torch.randn(TOKENS, width, dtype=torch.bfloat16),
            torch.randn(TOKENS, 2 * VALUE_HEADS, dtype=torch.bfloat16),
            KEY_HEADS,
            VALUE_HEADS,
            head_k_dim,
            head_v_dim,
        )
        print(f"{head_k_dim} x {head_v_dim}: compiles")
    except triton.CompilationError as error:
        print(f"{head_k_dim} x {head_v_dim}: {str(error.__cause__ or error).splitlines()[-1]}")
