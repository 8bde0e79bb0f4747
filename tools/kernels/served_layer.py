"""A linear layer as an engine serves it: its sizes, its pool of states, random requests, and the
float64 recurrence that says what the engine's kernels should compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

WIDTH = 4  # of the short convolution
L2_EPS = 1e-6


@dataclass(frozen=True, eq=False)
class Layer:
    """Sizes of one Gated DeltaNet layer, and the weights that its kernels read."""

    keys: int
    values: int
    key_heads: int
    value_heads: int
    convolution: Tensor  # [channels of q, k and v, WIDTH]
    A_log: Tensor  # [value heads]
    dt_bias: Tensor  # [value heads]
    norm: Tensor  # [values]

    @staticmethod
    def random(keys: int, values: int, key_heads: int, value_heads: int) -> Layer:
        channels = 2 * key_heads * keys + value_heads * values
        return Layer(
            keys, values, key_heads, value_heads,
            convolution=torch.randn(channels, WIDTH).bfloat16(),
            A_log=torch.randn(value_heads) - 2,  # decays of about exp(-0.1), that remember
            dt_bias=torch.randn(value_heads),
            norm=torch.rand(values) + 0.5,
        )  # fmt: skip

    @property
    def channels(self) -> int:
        return len(self.convolution)

    @property
    def gates(self) -> dict[str, Tensor]:
        return {"A_log": self.A_log, "dt_bias": self.dt_bias}

    def divided(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k [tokens, key heads, keys] and v [tokens, value heads, values] of `mixed`."""
        widths = [self.key_heads * self.keys] * 2 + [self.value_heads * self.values]
        q, k, v = mixed.split(widths, dim=-1)
        by_head = (len(mixed), self.key_heads, self.keys)
        return q.reshape(by_head), k.reshape(by_head), v.reshape(len(mixed), -1, self.values)


@dataclass(eq=False)
class Pool:
    """The memory of all sequences, a slot each; engines leave slot 0 empty."""

    convolution: Tensor  # [slots, channels, inputs kept]
    states: Tensor  # [slots, value heads, values, keys]

    @staticmethod
    def random(layer: Layer, slots: int, kept_inputs: int = WIDTH - 1) -> Pool:
        by_token = torch.randn(slots, kept_inputs, layer.channels).bfloat16()
        states = 0.3 * torch.randn(slots, layer.value_heads, layer.values, layer.keys)
        return Pool(by_token.transpose(1, 2), states)  # channels last in memory, as in the engines

    def copy(self) -> Pool:
        return Pool(self.convolution.mT.clone().mT, self.states.clone())


@dataclass(frozen=True, eq=False)
class Tokens:
    """What the projections give the kernels for a batch of tokens, in bfloat16."""

    mixed: Tensor  # [tokens, channels]: q, k and v of all heads
    z: Tensor  # [tokens, value heads, values]
    a: Tensor  # [tokens, value heads]
    b: Tensor  # [tokens, value heads]

    @staticmethod
    def random(layer: Layer, count: int) -> Tokens:
        return Tokens(
            torch.randn(count, layer.channels).bfloat16(),
            torch.randn(count, layer.value_heads, layer.values).bfloat16(),
            torch.randn(count, layer.value_heads).bfloat16(),
            torch.randn(count, layer.value_heads).bfloat16(),
        )

    def between(self, start: int, end: int) -> Tokens:
        return Tokens(
            self.mixed[start:end], self.z[start:end], self.a[start:end], self.b[start:end]
        )


@dataclass(frozen=True, eq=False)
class Expected:
    """One sequence in float64: outputs, and what the pool holds after each of its tokens."""

    outputs: Tensor  # [tokens, value heads, values]
    states: Tensor  # [tokens, value heads, values, keys]
    inputs: Tensor  # [WIDTH - 1 + tokens, channels], those of the pool first


@torch.no_grad()
def recurrence(layer: Layer, tokens: Tokens, inputs: Tensor, state: Tensor) -> Expected:
    """Continue one sequence token by token, from the last `inputs` [channels, WIDTH - 1] and the
    state [value heads, values, keys]."""
    all_inputs = torch.cat([inputs.mT.double(), tokens.mixed.double()])
    windows = all_inputs.unfold(0, WIDTH, 1)  # [tokens, channels, WIDTH]
    mixed = functional.silu((windows * layer.convolution.double()).sum(-1))
    q, k, v = layer.divided(mixed)
    group = layer.value_heads // layer.key_heads
    q, k = (unit(x).repeat_interleave(group, 1) for x in (q, k))
    steps = functional.softplus(tokens.a.double() + layer.dt_bias.double())
    decay = (-layer.A_log.double().exp() * steps).exp()
    beta = tokens.b.double().sigmoid()
    state = state.double()
    outputs, states = [], []
    for t in range(len(mixed)):
        state = decay[t, :, None, None] * state
        error = v[t] - torch.einsum("hvk,hk->hv", state, k[t])
        state = state + torch.einsum("hv,hk->hvk", beta[t, :, None] * error, k[t])
        outputs.append(torch.einsum("hvk,hk->hv", state, q[t]) * layer.keys**-0.5)
        states.append(state)
    return Expected(torch.stack(outputs), torch.stack(states), all_inputs)


def unit(x: Tensor) -> Tensor:
    """`x` divided by its length along the last dimension, as the kernels do it."""
    return x * (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()


def gated_norm(layer: Layer, outputs: Tensor, z: Tensor) -> Tensor:
    """RMS norm of each head's output [tokens, value heads, values], times SiLU of the gate."""
    outputs, z = outputs.double(), z.double()
    scale = (outputs.square().mean(-1, keepdim=True) + L2_EPS).rsqrt()
    return outputs * scale * layer.norm.double() * functional.silu(z)
