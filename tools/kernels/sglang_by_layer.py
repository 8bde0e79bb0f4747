"""Layers of different widths in SGLang 0.5.23 with results/upstream/sglang-by-layer.patch.

    PYTHONPATH=PATCHED KERNELS/bin/python tools/kernels/sglang_by_layer.py

PATCHED holds a copy of the package `sglang` to which the patch was applied. Two layers of one pool,
64x64 and 32x32, read sequences by SGLang's backend, with its Triton kernels interpreted: a prefill,
its continuation, and decoded tokens, in slots that were copied, moved to the host and cleared.
Prints how far outputs are from the recurrence in float64, and the bytes of the pool.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import triton_on_cpu
from served_layer import WIDTH, Layer, Tokens, recurrence
from transformers.utils import is_torchvision_available

triton_on_cpu.install()
is_torchvision_available()  # for transformers, before there seems to be one
for name in (  # which SGLang imports and nothing here needs
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "sentencepiece",
    "gguf",
    "sglang.srt.model_executor.model_runner",
):
    sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None), __path__=[])

from sglang.srt.configs.mamba_utils import (  # noqa: E402
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
)
from sglang.srt.layers.attention.linear.gdn_backend import (  # noqa: E402
    GDNAttnBackend,
    GDNKernelDispatcher,
)
from sglang.srt.layers.attention.linear.utils import LinearAttnKernelBackend  # noqa: E402
from sglang.srt.layers.radix_linear_attention import RadixLinearAttention  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MambaPool  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402

triton_on_cpu.mend_modules("sglang.")

KEY_HEADS, VALUE_HEADS, SLOTS = 2, 4, 5
SIDES = {0: 64, 2: 32}  # layer -> keys and values per head
LENGTHS = [70, 9], [5, 66]  # tokens of two sequences, in two pieces
DECODED = 2


def make_pool() -> tuple[MambaPool, Mamba2CacheParams]:
    widest = max(SIDES.values())
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=VALUE_HEADS * widest,
        n_groups=KEY_HEADS,
        num_heads=VALUE_HEADS,
        head_dim=widest,
        state_size=widest,
        conv_kernel=WIDTH,
    )
    parameters = Mamba2CacheParams(
        shape=shape,
        layers=list(SIDES),
        dtype=Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32),
        temporal_by_layer={i: (VALUE_HEADS, x, x) for i, x in SIDES.items() if x != widest},
    )
    pool = MambaPool(
        size=SLOTS,
        spec_state_size=0,
        cache_params=parameters,
        mamba_layer_ids=parameters.layers,
        device="cpu",
    )
    return pool, parameters


def make_backend(pool: MambaPool) -> Any:
    backend = GDNAttnBackend.__new__(GDNAttnBackend)
    index = {layer: i for i, layer in enumerate(pool.mamba_layer_ids)}
    backend.req_to_token_pool = SimpleNamespace(
        mamba_pool=pool, mamba2_layer_cache=lambda layer: pool.mamba2_layer_cache(index[layer])
    )
    triton = LinearAttnKernelBackend.TRITON
    backend.kernel_dispatcher = GDNKernelDispatcher(triton, triton, triton)
    backend.mis_metadata, backend._use_strided_target_verify_qkv = None, False
    return backend


def attention(layer: Layer, layer_id: int) -> RadixLinearAttention:
    heads, widths = (layer.key_heads,) * 2, (layer.keys,) * 2
    return RadixLinearAttention(
        layer_id, *heads, layer.value_heads, *widths, layer.values,
        conv_weights=layer.convolution, A_log=layer.A_log, dt_bias=layer.dt_bias,
    )  # fmt: skip


class Absent(SimpleNamespace):
    """Metadata of which only the fields for these calls are set."""

    def __getattr__(self, name: str) -> None:
        return None


def forward(backend: Any, layer: Layer, layer_id: int, parts: list[Tokens], slots: Any, seen: Any):
    """Outputs by sequence, of their next tokens after `seen` ones."""
    lengths = [len(tokens.mixed) for tokens in parts]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    backend.forward_metadata = Absent(query_start_loc=starts, mamba_cache_indices=slots)
    is_decode = max(lengths) == 1 and min(seen) > 0
    batch = Absent(
        forward_mode=ForwardMode.DECODE if is_decode else ForwardMode.EXTEND,
        extend_prefix_lens=torch.tensor(seen),
        extend_seq_lens_cpu=lengths,
        batch_size=len(parts),
    )
    mixed, a, b = (torch.cat([getattr(x, n) for x in parts]) for n in ("mixed", "a", "b"))
    run = backend.forward_decode if is_decode else backend.forward_extend
    outputs = run(attention(layer, layer_id), batch, mixed, a, b)
    return outputs.reshape(-1, layer.value_heads, layer.values).split(lengths)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    pool, parameters = make_pool()
    backend = make_backend(pool)
    pieces = [*zip(*LENGTHS, strict=True)] + DECODED * [(1, 1)]
    totals = torch.tensor(pieces).sum(0).tolist()
    layers = {i: Layer.random(x, x, KEY_HEADS, VALUE_HEADS) for i, x in SIDES.items()}
    tokens = {i: [Tokens.random(layer, n) for n in totals] for i, layer in layers.items()}
    outputs: dict[int, list[list[Any]]] = {i: [[], []] for i in layers}
    slots, seen = torch.tensor([3, 1], dtype=torch.int32), [0, 0]
    for lengths in pieces:
        for i, layer in layers.items():
            parts = [
                x.between(start, start + n)
                for x, start, n in zip(tokens[i], seen, lengths, strict=True)
            ]
            for kept, new in zip(
                outputs[i], forward(backend, layer, i, parts, slots, seen), strict=True
            ):
                kept.append(new)
        seen = [start + n for start, n in zip(seen, lengths, strict=True)]
        # The first sequence moves to another slot, the second through the host to its own.
        moved = torch.tensor([4 if slots[0] == 3 else 3, 1], dtype=torch.int32)
        pool.copy_from(slots[:1].long(), moved[:1].long())
        saved = pool.get_cpu_copy(slots[1:].long())
        pool.clear_slots(slots)
        pool.load_cpu_copy(saved, slots[1:].long())
        slots = moved
    for i, layer in layers.items():
        for sequence, kept in zip(tokens[i], outputs[i], strict=True):
            empty = (
                torch.zeros(layer.channels, WIDTH - 1),
                torch.zeros(VALUE_HEADS, layer.values, layer.keys),
            )
            expected = recurrence(layer, sequence, *empty).outputs
            largest = (torch.cat(kept).double() - expected).abs().max() / expected.std()
            print(f"layer {i}, {layer.keys}x{layer.values}: {len(expected)} tokens, largest "
                  f"difference {largest:.4f} of the outputs' deviation")  # fmt: skip
    entries = [x.nbytes // len(x) for _, x, _, _ in pool._iter_transfer_state_entries()]
    print(f"bytes of a sequence: {sum(entries)} in the pool, {parameters.mamba_cache_per_req} "
          f"by the config's; {pool.get_kv_size_bytes() // (SLOTS + 1)} of the pool")  # fmt: skip


if __name__ == "__main__":
    main()
