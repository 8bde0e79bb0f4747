"""From final hidden states to logits, as the stock model computes them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import StatetrimError
from ..runtime.live import LiveModel

_PROBE_TOKENS = 8  # tokens on which the head is compared with the model's own logits


@dataclass(frozen=True, eq=False)
class LogitHead:
    """A frozen output projection, with the scale and the soft cap that some models apply."""

    module: nn.Linear
    scale: float = 1.0
    cap: float | None = None

    @property
    def weight(self) -> Tensor:
        """[vocabulary, hidden]; gathered if it is sharded."""
        return _full(self.module.weight.detach())

    @property
    def bias(self) -> Tensor | None:
        """[vocabulary]; gathered if it is sharded."""
        return None if self.module.bias is None else _full(self.module.bias.detach())

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[positions, hidden] -> [positions, vocabulary], float32, after scale and soft cap.
        `weight` and `bias` are this head's, gathered once by the caller."""
        logits = functional.linear(hidden.to(weight.dtype), weight, bias).float()
        if self.scale != 1.0:
            logits *= self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def backward(self, gradient: Tensor, logits: Tensor, weight: Tensor) -> Tensor:
        """Gradient of the logits [positions, vocabulary] -> gradient of the hidden states, float32
        [positions, hidden]; `logits` are those that the method `logits` returned."""
        if self.cap is not None:
            gradient = gradient * (1 - (logits / self.cap).square())
        return (gradient.to(weight.dtype) @ weight).float() * self.scale


def get_logit_head(live: LiveModel) -> LogitHead:
    """The head of a live model. Raises StatetrimError if it does not give the model's logits."""
    config = live.module.config.get_text_config()
    scale = getattr(config, "lm_head_multiplier", 1.0) / getattr(config, "logits_scaling", 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    head = LogitHead(live.lm_head, float(scale), cap)
    ids = torch.arange(_PROBE_TOKENS).unsqueeze(0) % config.vocab_size
    with torch.no_grad():
        stock_logits = _stock_logits(live, head, ids)[0].float()
        hidden = live.hidden_states(ids)[0]
        head_logits = head.logits(hidden, head.weight, head.bias)
    if not torch.allclose(
        head_logits, stock_logits, rtol=1e-3, atol=1e-3 * float(stock_logits.abs().max())
    ):
        raise StatetrimError(
            f"{type(live.module).__name__} turns hidden states into logits in a way that statetrim "
            f"does not know, so it cannot be distilled"
        )
    return head


def _stock_logits(live: LiveModel, head: LogitHead, ids: Tensor) -> Tensor:
    """Logits of the model's own forward pass, [batch, time, vocabulary].

    Meanwhile its head is replaced by an unsharded one: FSDP gathers a head that is tied to the
    embeddings only for the embeddings.
    """
    full_head = nn.Linear(1, 1, bias=head.bias is not None, device="meta")
    full_head.weight = nn.Parameter(head.weight, requires_grad=False)
    if head.bias is not None:
        full_head.bias = nn.Parameter(head.bias, requires_grad=False)
    live.model_with_head.set_output_embeddings(full_head)
    try:
        return live.logits(ids)
    finally:
        live.model_with_head.set_output_embeddings(head.module)


def _full(tensor: Tensor) -> Tensor:
    """A sharded tensor in full, for which every process must call this; any other as it is."""
    full_tensor: Any = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()
