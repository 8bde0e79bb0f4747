"""A random GGUF with the layer sizes of Qwen3.5-27B, in 4 bits, for time and memory.

    python random_model.py TEMPLATE.gguf OUT.gguf LAYERS

Runs in the environment of make_llamacpp.sh. The vocabulary is that of TEMPLATE, a small `qwen35`.
Gates are initialized as in training, so states forget at many rates.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD = 5120, 17408, 24, 4, 256
KEY_HEADS, VALUE_HEADS, STATE, KERNEL, INTERVAL = 16, 48, 128, 4, 4
INNER = VALUE_HEADS * STATE
MIXED = INNER + 2 * KEY_HEADS * STATE
RANDOM = numpy.random.default_rng(0)


def in_4_bits(inputs: int, outputs: int) -> Any:
    """Blocks of Q4_0: a float16 step, then 32 codes of 4 bits; the bytes of a matrix, random."""
    blocks = RANDOM.integers(0, 256, (outputs, inputs // 32, 18), dtype=numpy.uint8)
    step = numpy.array([1 / (4.6 * inputs**0.5)], numpy.float16)
    blocks[:, :, :2] = step.view(numpy.uint8)
    return blocks.reshape(outputs, -1)


def add_layer(writer: GGUFWriter, layer: int) -> None:
    matrices = {
        "ffn_gate": (HIDDEN, INTERMEDIATE),
        "ffn_up": (HIDDEN, INTERMEDIATE),
        "ffn_down": (INTERMEDIATE, HIDDEN),
    }
    vectors = {
        "attn_norm.weight": numpy.ones(HIDDEN),
        "post_attention_norm.weight": numpy.ones(HIDDEN),
    }
    if (layer + 1) % INTERVAL:
        matrices |= {"attn_qkv": (HIDDEN, MIXED), "attn_gate": (HIDDEN, INNER)}
        matrices |= {"ssm_out": (INNER, HIDDEN)}
        steps = numpy.exp(RANDOM.uniform(numpy.log(0.001), numpy.log(0.1), VALUE_HEADS))
        vectors |= {
            "ssm_a": -RANDOM.uniform(1, 16, VALUE_HEADS),
            "ssm_dt.bias": steps + numpy.log(-numpy.expm1(-steps)),
            "ssm_conv1d.weight": RANDOM.uniform(-0.5, 0.5, (MIXED, KERNEL)),
            "ssm_norm.weight": numpy.ones(STATE),
            "ssm_alpha.weight": RANDOM.normal(0, 0.02, (VALUE_HEADS, HIDDEN)),
            "ssm_beta.weight": RANDOM.normal(0, 0.02, (VALUE_HEADS, HIDDEN)),
        }
    else:
        matrices |= {"attn_q": (HIDDEN, 2 * HEADS * HEAD), "attn_output": (HEADS * HEAD, HIDDEN)}
        matrices |= {"attn_k": (HIDDEN, KV_HEADS * HEAD), "attn_v": (HIDDEN, KV_HEADS * HEAD)}
        vectors |= {"attn_q_norm.weight": numpy.ones(HEAD)}
        vectors |= {"attn_k_norm.weight": numpy.ones(HEAD)}
    for name, sizes in matrices.items():
        data = in_4_bits(*sizes)
        writer.add_tensor(f"blk.{layer}.{name}.weight", data, raw_dtype=GGMLQuantizationType.Q4_0)
    for name, vector in vectors.items():
        writer.add_tensor(f"blk.{layer}.{name}", vector.astype(numpy.float32))


def main() -> None:
    template, out, layers = GGUFReader(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    writer = GGUFWriter(out, "qwen35", use_temp_file=True)
    writer.add_block_count(layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(10_000_000.0)
    writer.add_rope_dimension_count(HEAD // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(INNER)
    writer.add_full_attention_interval(INTERVAL)
    fields = {name: field.contents() for name, field in template.fields.items()}
    writer.add_tokenizer_model(fields["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(fields["tokenizer.ggml.pre"])
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.add_eos_token_id(fields["tokenizer.ggml.eos_token_id"])
    vocabulary = len(fields["tokenizer.ggml.tokens"])
    writer.add_tensor(
        "token_embd.weight", RANDOM.normal(0, 0.02, (vocabulary, HIDDEN)).astype(numpy.float32)
    )
    writer.add_tensor("output_norm.weight", numpy.ones(HIDDEN, numpy.float32))
    for layer in range(layers):
        add_layer(writer, layer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
