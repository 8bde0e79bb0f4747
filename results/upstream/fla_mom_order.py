"""flash-linear-attention 0.6: MoM reads the tokens of a memory out of order.

python fla_mom_order.py      # no GPU needed
"""

import torch
from fla.layers.mom import transform

tokens = torch.arange(64.0).reshape(1, 64, 1)  # each is its own position
memories = torch.arange(64).reshape(1, 64, 1) % 2  # even ones go to memory 0, odd ones to memory 1
mask = torch.nn.functional.one_hot(memories[..., 0], 2)
read = transform(tokens, mask, 2, memories, None)[0]
print("memory 0 reads", read[0, 0, :, 0].int().tolist())
