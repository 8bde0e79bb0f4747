"""flash-linear-attention 0.6: a value width can only be given as a multiple of the key width.

python fla_value_width.py      # no GPU needed: configs and parameter shapes only
"""

import torch
from fla.layers import GatedDeltaNet

with torch.device("meta"):
    for head_k_dim, head_v_dim in ((128, 128), (64, 128), (98, 128), (49, 128), (47, 96)):
        expand_v = head_v_dim / head_k_dim
        try:
            layer = GatedDeltaNet(
                hidden_size=256, num_heads=2, head_dim=head_k_dim, expand_v=expand_v
            )
            print(f"{head_k_dim} x {head_v_dim}: expand_v={expand_v!r} gives {layer.head_v_dim}")
        except ValueError as error:
            print(f"{head_k_dim} x {head_v_dim}: expand_v={expand_v!r}: {error}")
