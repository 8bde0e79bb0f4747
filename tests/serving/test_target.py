"""Targets from amounts of channels, from memory, and for an engine."""

import json
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from statetrim.maths.units import GIB, MIB
from statetrim.serving.target import Target, target_from_amounts, target_from_options

# Qwen3-Next-80B-A3B: 36 linear-attention layers of 32 heads with 128 x 128, 72 MiB in float32.
QWEN = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "linear_num_value_heads": 32,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip


@pytest.fixture
def qwen(tmp_path: Path) -> st.Checkpoint:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return st.open(tmp_path / "config.json")


def shape(target: Target) -> tuple[int, int]:
    return target.after.head_k_dim, target.after.head_v_dim


@pytest.mark.parametrize(
    ("amounts", "expected", "words"),
    [
        ({"keep": 64}, (64, 128), (64, None)),
        ({"keep": "0.3"}, (48, 128), ("0.3", None)),
        ({"keep_values": 0.5}, (128, 64), (None, 0.5)),
        ({"keep": "96", "keep_values": 64}, (96, 64), ("96", 64)),
        ({"square": 32}, (32, 32), ("32", "32")),
    ],
)
def test_channels_or_fractions(
    amounts: dict[str, Any], expected: tuple[int, int], words: tuple[Any, Any], qwen: st.Checkpoint
) -> None:
    target = target_from_amounts(qwen, **amounts)
    assert shape(target) == expected and (target.keep, target.keep_values) == words
    assert target_from_options(qwen, **amounts) == target
    assert target.after == qwen.geometry.resized(*expected)


def sequence_bytes(geometry: st.Geometry) -> float:
    """Bytes of one sequence, counted by hand: float32 states, bfloat16 convolutions of width 4."""
    state = 36 * 32 * geometry.head_k_dim * geometry.head_v_dim * 4
    channels = 2 * 16 * geometry.head_k_dim + 32 * geometry.head_v_dim
    return state + 36 * channels * (geometry.conv_width) * 2


@pytest.mark.parametrize("max_mib", [71.0, 40.0, 18.0])
def test_a_budget_is_kept_and_used(max_mib: float, qwen: st.Checkpoint) -> None:
    target = target_from_options(qwen, state_mib_per_sequence=max_mib)
    assert sequence_bytes(target.after) <= max_mib * MIB
    wider = qwen.geometry.resized(target.after.head_k_dim + 16)
    assert sequence_bytes(wider) > max_mib * MIB
    assert target.after.head_v_dim == 128 and target.keep_values is None
    sequences = 100
    same = target_from_options(
        qwen, sequences=sequences, memory_gib=max_mib * sequences * MIB / GIB
    )
    assert same == target


@pytest.mark.parametrize(
    ("amounts", "engine", "expected"),
    [
        ({"keep": 64}, "vllm", (80, 96)),
        ({"keep": 96}, "llama.cpp", (64, 64)),
        ({"keep": 64}, "MLX-LM", (64, 128)),
        ({"state_mib_per_sequence": 40.0}, "mlx", (64, 128)),
        ({"keep": 64, "keep_values": 128}, "mlx", (64, 128)),
        ({"keep": "128", "keep_values": 64}, "mlx", (128, 64)),
    ],
)
def test_an_engine_gets_a_shape_it_serves(
    amounts: dict[str, Any], engine: str, expected: tuple[int, int], qwen: st.Checkpoint
) -> None:
    target = target_from_options(qwen, for_=engine, **amounts)
    assert shape(target) == expected
    assert (target.keep is None) == (expected[0] == 128)
    assert (target.keep_values is None) == (expected[1] == 128)


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({}, "say once what to keep"),
        ({"keep": 64, "square": 64}, "say once what to keep"),
        ({"square": 64, "state_mib_per_sequence": 9.0}, "say once what to keep"),
        ({"memory_gib": 1.0}, "go together"),
        ({"sequences": 0, "memory_gib": 1.0}, "must both be positive"),
        ({"keep": 64, "for_": "abacus"}, "no engine 'abacus'; choose vllm"),
        ({"keep": 128}, "nothing would change"),
        ({"keep": 128, "keep_values": 128}, "nothing would change"),
        ({"keep": 64, "keep_values": 128, "for_": "vllm"}, "does not serve a state of 64x128"),
        ({"square": 32, "for_": "vllm-cpu"}, "smallest cut that does is 64x64"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    amounts: dict[str, Any], message: str, qwen: st.Checkpoint
) -> None:
    with pytest.raises(st.StatetrimError, match=message):
        target_from_options(qwen, **amounts)


def test_squares_in_python_as_on_the_command_line(checkpoint: Any, qwen: st.Checkpoint) -> None:
    report = st.inspect(qwen, square=64)
    assert report.after and (report.after.head_k_dim, report.after.head_v_dim) == (64, 64)
    plan = st.select(st.open(checkpoint("qwen3_5_text")), "l1", square=4, value_method="readout_l1")
    assert (plan.keep, plan.keep_values, plan.requested) == (4, 4, "4")
    with pytest.raises(st.StatetrimError, match="leave out the other two"):
        st.select(st.open(checkpoint("qwen3_5_text")), "l1", 6, square=4)
