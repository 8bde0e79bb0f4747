"""vLLM 0.20 to 0.32: the post-convolution kernel of GDN prefill compiles only where keys and values
round up to the same power of two. `--renamed` gives the second mask a name of its own first.

    python vllm_mask_2d.py [--renamed]      # no GPU needed: compiles for sm_90, launches nothing
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import vllm.triton_utils as utils
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

utils.triton, utils.tl = triton, triton.language  # without a GPU these are placeholders
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

ops = Path(utils.__file__).parents[1] / "third_party/flash_linear_attention/ops"
source = (ops / "fused_gdn_prefill_post_conv.py").read_text()
if "--renamed" in sys.argv:
    keys, values = source.split("# ============ V head + gating processing ============")
    source = keys + values.replace("mask_2d", "mask_v_2d")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "post_conv.py")
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("post_conv", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for head_k_dim, head_v_dim in ((128, 128), (96, 128), (64, 128), (32, 128), (64, 64)):
        heads, tokens = 2, 70
        width = 2 * heads * head_k_dim + heads * head_v_dim
        try:
            module.fused_post_conv_prep(
                conv_output=torch.randn(tokens, width, dtype=torch.bfloat16),
                a=torch.randn(tokens, heads, dtype=torch.bfloat16),
                b=torch.randn(tokens, heads, dtype=torch.bfloat16),
                A_log=torch.randn(heads),
                dt_bias=torch.randn(heads),
                num_k_heads=heads,
                head_k_dim=head_k_dim,
                head_v_dim=head_v_dim,
            )
            print(f"{head_k_dim} x {head_v_dim}: compiles")
        except triton.CompilationError as error:
            cause = str(error.__cause__ or error).splitlines()[-1]
            print(f"{head_k_dim} x {head_v_dim}: {cause}")
