"""How far rounding alone moves a model with experts: the control of serve_parts.py.

    PYTHONPATH=src python tools/kernels/round_layers.py MODEL

Inputs and outputs of linear layers are rounded to bfloat16 in transformers, without an engine and
without parts. Prints the mean difference of logits from float32: of tokens that get the same
experts in every layer, and of the others.
"""

from __future__ import annotations

import sys
from typing import Any

sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # type: ignore[assignment]
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import statetrim as st  # noqa: E402


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


@torch.inference_mode()
def logits_and_experts(model: Any, ids: Tensor, *, round_layers: bool) -> tuple[Tensor, Tensor]:
    """Logits, and the experts of every token: [tokens, layers, experts]."""
    chosen, hooks = [], []
    for layer in model.get_decoder().layers:
        keep = lambda _, __, output: chosen.append(output[-1].sort(-1).values)  # noqa: E731
        hooks.append(layer.mlp.gate.register_forward_hook(keep))
        if round_layers and hasattr(layer, "linear_attn"):
            before = lambda _, args, named: (  # noqa: E731
                args,
                named | {"hidden_states": rounded(named["hidden_states"])},
            )
            after = lambda _, __, output: rounded(output)  # noqa: E731
            hooks.append(layer.linear_attn.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(layer.linear_attn.register_forward_hook(after))
    logits = model(ids).logits.flatten(0, 1)
    for hook in hooks:
        hook.remove()
    return logits, torch.stack(chosen, 1)


def main() -> None:
    torch.set_num_threads(1)
    model = st.load(sys.argv[1]).eval()
    ids = torch.randint(1, 500, (4, 101), generator=torch.Generator().manual_seed(0))
    expected, experts = logits_and_experts(model, ids, round_layers=False)
    logits, experts_after = logits_and_experts(model, ids, round_layers=True)
    difference = (logits - expected).abs()
    moved = (experts != experts_after).flatten(1).any(1)
    print(f"{len(logits)} tokens: mean {difference.mean():.4f}, largest {difference.max():.3f}")
    for name, tokens in ("same experts", ~moved), ("other experts", moved):
        print(f"{name}: {int(tokens.sum())} tokens, mean {difference[tokens].mean():.4f}")


if __name__ == "__main__":
    main()
