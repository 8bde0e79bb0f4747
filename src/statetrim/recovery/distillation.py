"""Cross-entropy + T² KL(teacher || student), with the logits of one chunk of positions at a time.

The heads are frozen, so the gradient of the hidden states is computed in the forward pass, chunk by
chunk, and no logits are kept for the backward pass.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import StatetrimError
from ..runtime.live import LiveModel, find_decoder
from ..runtime.logits import probe_ids
from .fsdp import full_value


@dataclass(frozen=True, eq=False)
class LogitHead:
    """A frozen output projection, with the scale and the soft cap that some models apply."""

    module: nn.Linear
    scale: float = 1.0
    cap: float | None = None

    @property
    def weight(self) -> Tensor:
        """[vocabulary, hidden]; gathered if it is sharded."""
        return full_value(self.module.weight.detach())

    @property
    def bias(self) -> Tensor | None:
        """[vocabulary]; gathered if it is sharded."""
        return None if self.module.bias is None else full_value(self.module.bias.detach())

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


def checked_logit_head(live: LiveModel) -> LogitHead:
    """The head of a live model. Raises StatetrimError if it does not give the model's logits."""
    config = live.module.config.get_text_config()
    scale = getattr(config, "lm_head_multiplier", 1.0) / getattr(config, "logits_scaling", 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    head = LogitHead(live.lm_head, float(scale), cap)
    ids = probe_ids(config.vocab_size)
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


CHUNK_LOGITS = {"cpu": 2**20, "cuda": 2**24}
"""Logits per chunk and model: few enough for a CPU's cache, enough to keep a GPU busy."""


class Distillation(nn.Module):
    """The student with its loss. The teacher, if any, is not a submodule: its parameters are not
    trained or saved. `eval_modules` of the student stay in eval mode."""

    def __init__(
        self,
        student: Any,
        head: LogitHead,
        teacher: Any = None,
        teacher_head: LogitHead | None = None,
        temperature: float = 2.0,
        eval_modules: tuple[nn.Module, ...] = (),
        answer_positions: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self.head, self.temperature = head, temperature
        self.answer_positions = answer_positions  # int64 [n], see `RecallRows`
        # Set without nn.Module.__setattr__, which would register them as submodules.
        self.__dict__.update(teacher=teacher, teacher_head=teacher_head, eval_modules=eval_modules)

    def train(self, mode: bool = True) -> "Distillation":
        super().train(mode)
        for module in self.__dict__["eval_modules"]:
            module.eval()
        return self

    def forward(self, input_ids: Tensor, is_recall: Tensor | None = None) -> dict[str, Tensor]:
        """`input_ids` [batch, time] -> "loss", the mean over rows, and "sums" [2, 3]: for text and
        for recall the number of rows, the sum of their cross-entropies, and that of their KLs.

        The loss of a row is the mean over its predicted tokens; of a recall sequence (`is_recall`,
        bool [batch]), over its answers.
        """
        input_ids = input_ids.long()
        teacher: Any = self.__dict__["teacher"]
        teacher_hidden: Tensor | None = None
        if teacher is not None:
            with torch.no_grad():
                teacher_hidden = _final_hidden(teacher, input_ids)
        student_hidden = _final_hidden(self.student, input_ids)
        targets = input_ids.roll(-1, 1)
        weights = self._position_weights(input_ids, is_recall)  # [batch, time, sources]
        has_weight = weights.sum(-1) > 0
        # One call for text and recall: all processes must gather a sharded head equally often, and
        # one of them may have no recall sequence.
        loss, loss_parts = chunked_loss(
            student_hidden[has_weight],
            targets[has_weight],
            self.head,
            weights[has_weight],
            None if teacher_hidden is None else teacher_hidden[has_weight],
            self.__dict__["teacher_head"],
            self.temperature,
        )
        rows = (weights > 0).any(1).sum(0)  # [sources]
        return {"loss": loss, "sums": torch.cat([rows[None], loss_parts * len(input_ids)]).mT}

    def _position_weights(self, input_ids: Tensor, is_recall: Tensor | None) -> Tensor:
        """Weights of the positions in the mean over rows, float32 [batch, time, 2]: text, recall.
        All together sum to 1; without `is_recall` every row is text."""
        rows, time = input_ids.shape
        weights = torch.zeros(rows, time, 2, device=input_ids.device)
        weights[:, :-1, 0] = 1 / (rows * (time - 1))
        if is_recall is None:
            return weights
        assert self.answer_positions is not None
        is_answer = torch.zeros(time, dtype=torch.bool, device=is_recall.device)
        is_answer[self.answer_positions.to(is_recall.device)] = True
        weights[is_recall, :, 0] = 0
        weights[:, :, 1] = is_recall[:, None] * is_answer / (rows * len(self.answer_positions))
        return weights


def _final_hidden(model: Any, input_ids: Tensor) -> Tensor:
    """The head's input, after the final norm: [batch, time, hidden]."""
    hidden: Tensor = find_decoder(model)(input_ids=input_ids, use_cache=False).last_hidden_state
    return hidden


def chunked_loss(
    hidden: Tensor,
    targets: Tensor,
    head: LogitHead,
    weights: Tensor,
    teacher_hidden: Tensor | None = None,
    teacher_head: LogitHead | None = None,
    temperature: float = 2.0,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum of cross-entropy + temperature² KL(teacher || student) over positions, and its parts
    [2, sources]: cross-entropy, and KL at `temperature` without the factor (0 without a teacher).

    `hidden` and `teacher_hidden` [positions, hidden], `targets` [positions], `weights` [positions,
    sources]. Only `hidden` gets a gradient. `chunk_size` is in positions (default: by device and
    vocabulary).
    """
    needs_gradient = hidden.requires_grad and torch.is_grad_enabled()
    with torch.no_grad():
        weight, bias = head.weight, head.bias
        if teacher_head is not None:
            teacher_weight, teacher_bias = teacher_head.weight, teacher_head.bias
        most_logits = CHUNK_LOGITS.get(weight.device.type, 2**24)
        chunk_size = chunk_size or max(16, most_logits // len(weight))
        gradient = torch.empty_like(hidden) if needs_gradient else None
        losses = torch.zeros(2, len(targets), dtype=torch.float64, device=hidden.device)
        for start in range(0, len(targets), chunk_size):
            span = slice(start, start + chunk_size)
            logits, teacher_logits = head.logits(hidden[span], weight, bias), None
            if teacher_hidden is not None and teacher_head is not None:
                part = teacher_hidden[span]
                teacher_logits = teacher_head.logits(part, teacher_weight, teacher_bias)
            logit_gradient = _chunk_loss(
                logits, targets[span], teacher_logits, temperature, losses[:, span], needs_gradient
            )
            if gradient is not None:
                chunk_gradient = head.backward(logit_gradient, logits, weight)
                gradient[span] = chunk_gradient.mul_(weights[span].sum(-1, keepdim=True))
        loss_parts = (losses @ weights.double()).float()
        loss = loss_parts[0].sum() + temperature**2 * loss_parts[1].sum()
    if gradient is not None:  # adds zero, whose derivative by `hidden` is the gradient from above
        product = (hidden * gradient).sum(dtype=torch.float32)
        loss = loss + (product - product.detach())
    return loss, loss_parts


def _chunk_loss(
    logits: Tensor,
    targets: Tensor,
    teacher_logits: Tensor | None,
    temperature: float,
    position_losses: Tensor,
    needs_gradient: bool,
) -> Tensor:
    """Write cross-entropy and, with a teacher, KL without its factor to `position_losses` [2,
    positions]; returns the gradient of each position's loss by its `logits` (meaningless unless
    `needs_gradient`). Works in place where possible, since these are the largest tensors of a step;
    `teacher_logits` are overwritten."""
    rows = torch.arange(len(targets), device=targets.device)
    log_q = logits.log_softmax(-1)
    position_losses[0] = -log_q[rows, targets]
    logit_gradient = log_q
    if needs_gradient:
        logit_gradient = log_q.exp_()
        logit_gradient[rows, targets] -= 1
    if teacher_logits is not None:
        log_q_at_t = (logits / temperature).log_softmax(-1)
        log_p_at_t = teacher_logits.div_(temperature).log_softmax(-1)
        teacher_p = torch.exp(log_p_at_t, out=teacher_logits)
        position_losses[1] = torch.linalg.vecdot(teacher_p, log_p_at_t.sub_(log_q_at_t))
        if needs_gradient:
            logit_gradient.add_(log_q_at_t.exp_().sub_(teacher_p), alpha=temperature)
    return logit_gradient
