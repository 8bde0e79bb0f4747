"""vLLM's CPU prefill of a gated delta rule takes heads of 64x64 and 128x128, and no others.

python vllm_cpu_square.py      # a CPU with AVX512-bf16 and vLLM for CPUs, 0.27 to 0.32
"""

import torch
import vllm._C  # noqa: F401  (registers the operators)

TOKENS, HEADS = 16, 2
for head_k_dim, head_v_dim in ((128, 128), (64, 64), (96, 96), (32, 32), (64, 128)):
    q, k = (torch.randn(1, TOKENS, HEADS, head_k_dim, dtype=torch.bfloat16) for _ in range(2))
    v = torch.randn(1, TOKENS, HEADS, head_v_dim, dtype=torch.bfloat16)
    try:
        torch.ops._C.chunk_gated_delta_rule_cpu(
            q,
            k,
            v,
            -torch.rand(1, TOKENS, HEADS),  # log decay
            torch.rand(1, TOKENS, HEADS, dtype=torch.bfloat16),  # beta
            torch.zeros(1, HEADS, head_v_dim, head_k_dim),  # states
            True,
            torch.tensor([0, TOKENS], dtype=torch.int32),
            False,
            True,
            torch.zeros(1, dtype=torch.int32),
            1e-5,
        )
        print(f"{head_k_dim} x {head_v_dim}: runs")
    except RuntimeError as error:
        print(f"{head_k_dim} x {head_v_dim}: {str(error).splitlines()[0]}")
