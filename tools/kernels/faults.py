"""Errors planted in what an engine's kernels get, which a comparison must find."""

from __future__ import annotations

from dataclasses import replace

from served_layer import Layer, Tokens

FAULTS = ("keys", "slot", "gate")
"""Keys of one head in another order; a sequence that reads another's slot; the gates of two heads
exchanged."""


def exchanged_gates(layer: Layer) -> Layer:
    """The layer with the gates of its first two heads exchanged."""
    order = [1, 0, *range(2, layer.value_heads)]
    return replace(layer, A_log=layer.A_log[order], dt_bias=layer.dt_bias[order])


def permuted_keys(layer: Layer, tokens: Tokens) -> Tokens:
    """The tokens with the key channels of the first head in reverse order."""
    first = layer.key_heads * layer.keys
    mixed = tokens.mixed.clone()
    mixed[:, first : first + layer.keys] = mixed[:, first : first + layer.keys].flip(-1)
    return replace(tokens, mixed=mixed)
