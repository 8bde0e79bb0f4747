"""Candidate shapes within a share of the state's bytes, checked against the matrix."""

from collections.abc import Callable
from itertools import permutations

import pytest

from statetrim import Geometry, StatetrimError
from statetrim.serving.matrix import Shape, compatibility_of_shape
from statetrim.serving.shapes import candidate_shapes, check_engine, common_shapes

QWEN = Geometry((0, 1, 2), 16, 32, 128, 128)


def within(share: float) -> Callable[[Shape], bool]:
    return lambda shape: shape.numel <= share * 128 * 128


def refusing(model_type: str, shape: Shape) -> set[str]:
    lines = [line for line in compatibility_of_shape(model_type, shape) if line.current]
    return {line.engine for line in lines if line.verdict in ("refused", "wrong")}


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25, 0.1])
@pytest.mark.parametrize("engine", [None, "vLLM", "SGLang", "MLX-LM", "llama.cpp", "transformers"])
@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5"])
def test_every_candidate_fits_and_is_served(
    model_type: str, engine: str | None, share: float
) -> None:
    result = candidate_shapes(model_type, QWEN, within(share), engine)
    assert result
    for shape, refused in result.items():
        assert shape.numel <= share * 128 * 128
        assert set(refused) == refusing(model_type, shape) and engine not in refused


def test_narrow_heads_have_no_empty_and_repeated_cuts() -> None:
    shapes = common_shapes(Geometry((0,), 1, 1, 3, 2))
    assert shapes and len(shapes) == len({*shapes}) and all(shape.numel for shape in shapes)


def test_a_half_that_vllm_serves_is_no_key_cut() -> None:
    """vLLM's kernels refuse 64x128, the shape of the paper."""
    shapes = set(map(str, candidate_shapes("qwen3_next", QWEN, within(0.5), "vLLM")))
    assert "64x128" not in shapes and {"80x96", "96x80"} <= shapes


def test_shapes_that_every_engine_serves_come_first() -> None:
    refused = candidate_shapes("qwen3_next", QWEN, within(0.5))
    first, *others = refused
    assert str(first) == "64x64" and not refused[first]
    assert {"64x128", "128x64"} <= set(map(str, others))


def test_no_candidate_contains_another_of_its_group() -> None:
    _, *others = candidate_shapes("qwen3_next", QWEN, within(0.5))
    for first, second in permutations(others, 2):
        wider = first.head_k_dim >= second.head_k_dim
        assert not (wider and first.head_v_dim >= second.head_v_dim)


def test_an_engine_that_does_not_serve_the_model_type_is_named() -> None:
    with pytest.raises(StatetrimError, match="MLX-LM does not take qwen3_5_text, cut or not"):
        check_engine("MLX-LM", "qwen3_5_text")
    with pytest.raises(StatetrimError, match="vLLM is not known to serve delta_net at all"):
        check_engine("vLLM", "delta_net")
