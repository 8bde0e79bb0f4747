"""The cuts that reach a goal, against an enumeration of all heads and eighths of both axes, and the
matrix."""

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers.raw import RELEASED
from statetrim.artifacts.decision import MeasuredShape
from statetrim.cut.geometry import Geometry, allowed_head_counts, resolve_heads
from statetrim.cut.request import parse_request
from statetrim.pipelines.job import Job
from statetrim.pipelines.options import TrimOptions
from statetrim.serving.candidates import FLAG_DTYPE, Goal, candidate_targets
from statetrim.serving.capacity.compare import capacities
from statetrim.serving.engines import find_engine
from statetrim.serving.matrix import Shape, compatibility_of_shape
from statetrim.serving.options import CacheOptions
from statetrim.serving.shapes import (
    candidate_shapes,
    check_engine,
    common_shapes,
    engine_serves,
    served_shapes,
)

QWEN = RELEASED["Qwen3.5-27B"] | {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 0}
"""Three value heads for each key head."""


def goal_of(tmp_path: Path, to: str, for_: str | None = "vllm", **cache: Any) -> Goal:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    engine = None if for_ is None else find_engine(for_)
    serving = CacheOptions(**{"memory_gib": 40.0, **cache}).in_engine(engine)
    return Goal(st.open(tmp_path / "config.json"), parse_request(to), engine, serving)


def contains(larger: Geometry, smaller: Geometry) -> bool:
    sides = [(x.num_k_heads, x.num_v_heads, *x.widest) for x in (larger, smaller)]
    return all(a >= b for a, b in zip(*sides, strict=True))


@pytest.mark.parametrize(
    ("to", "for_"),
    [("1.3x", "vllm"), ("2x", "vllm"), ("1.5x", "sglang"), ("0.25", "llamacpp"), ("0.5", None)],
)
def test_every_candidate_reaches_the_goal_and_contains_what_is_left_out(
    to: str, for_: str | None, tmp_path: Path
) -> None:
    goal = goal_of(tmp_path, to, for_)
    before, model_type = goal.model.geometry, "qwen3_5_text"
    dtype = FLAG_DTYPE if to == "2x" else "float32"
    targets = list(candidate_targets(goal, dtype))
    for target in targets:
        if goal.request.gain is None:
            assert target.share <= goal.request.share
        else:
            rows = capacities(goal.model, target.after, goal.serving)
            counts = {(row.is_cut, row.state_dtype): row.fit.sequences for row in rows}
            assert counts[True, dtype] >= goal.request.gain * counts[False, "float32"]
        assert for_ is None or engine_serves(
            find_engine(for_).name, model_type, target.after.widest
        )
    alone = [target for target in targets if target.axes != ("head", "key", "value")]
    heads = [resolve_heads(count, before) for count in allowed_head_counts(before)]
    left_out = 0
    for start in (before, *heads):
        name = None if for_ is None else find_engine(for_).name
        for shape in served_shapes(model_type, start, name):
            cut = start.resized(*shape)
            is_combined = start != before and shape != before.widest
            if cut != before and goal.is_reached(cut, dtype) and not is_combined:
                left_out += 1
                if start == before or start.num_v_heads % 6 == 0 or start.num_v_heads % 16 == 0:
                    assert any(contains(target.after, cut) for target in alone), (start, shape)
    assert left_out > len(alone) and len(targets) - len(alone) <= 3


def test_flags_alone_reach_some_goals(tmp_path: Path) -> None:
    goal = goal_of(tmp_path, "1.3x")
    assert goal.has_dtype_lever and goal.is_reached(goal.model.geometry, FLAG_DTYPE)
    assert not goal_of(tmp_path, "1.4x").is_reached(goal.model.geometry, FLAG_DTYPE)
    assert not goal_of(tmp_path, "0.5", "llamacpp").has_dtype_lever, "it has no such flag"
    half = goal_of(tmp_path, "0.5")
    assert half.is_reached(goal.model.geometry, FLAG_DTYPE)
    assert not half.is_reached(goal.model.geometry, "float32")


def test_devices_share_the_heads_that_stay(tmp_path: Path) -> None:
    for devices, counts in ((1, {24, 16}), (4, {24, 16}), (16, {16})):
        targets = candidate_targets(goal_of(tmp_path, "0.5", None, devices=devices), "float32")
        heads = {target.after.num_v_heads for target in targets if target.axes == ("head",)}
        assert heads == counts


def test_a_goal_that_nothing_reaches_names_the_most(tmp_path: Path) -> None:
    with pytest.raises(st.StatetrimError, match=r"no cut gives 9x .*the most is 2\.\d\dx, with"):
        candidate_targets(goal_of(tmp_path, "9x"), FLAG_DTYPE)
    with pytest.raises(st.StatetrimError, match="counts sequences"):
        candidate_targets(goal_of(tmp_path, "2x", None), "float32")
    with pytest.raises(st.StatetrimError, match="counts sequences"):
        candidate_targets(goal_of(tmp_path, "2x", "transformers"), "float32")


@pytest.mark.parametrize("to", ["2x", "0.25"])
def test_devices_that_cannot_share_the_original_are_named(to: str, tmp_path: Path) -> None:
    with pytest.raises(st.StatetrimError, match="5 devices cannot share 48 value heads"):
        candidate_targets(goal_of(tmp_path, to, devices=5), FLAG_DTYPE)


@pytest.mark.parametrize(
    ("dtype", "flag"),
    [(None, "bfloat16"), ("bfloat16", "bfloat16"), ("float32", None), ("float16", None)],
)
def test_only_the_dtype_of_the_flag_is_counted(
    dtype: str | None, flag: str | None, tmp_path: Path
) -> None:
    """Others are measured, as an engine would store them, and the share is one of numbers."""
    model = goal_of(tmp_path, "0.25").model
    job = Job.from_options(model, TrimOptions(to=0.25, for_="vllm", state_dtype=dtype))
    assert job.flag_dtype == flag and job.state_dtype == (dtype or flag)
    assert max(target.share for target in job.candidates) == (0.5 if flag else 0.25)


def test_a_decision_without_bytes_is_refused(tmp_path: Path) -> None:
    point = MeasuredShape(Shape(4, 4), "none", 16)
    st.Decision("model", [point]).save(tmp_path / "decision.json")
    stored = (tmp_path / "decision.json").read_text()
    (tmp_path / "decision.json").write_text(stored.replace('"state_bytes": 16', '"state_bytes": 0'))
    with pytest.raises(st.StatetrimError, match="state_bytes must be 1 or more"):
        st.Decision.load(tmp_path / "decision.json")


def test_inspect_lists_what_reaches_a_gain(tmp_path: Path) -> None:
    model = goal_of(tmp_path, "2x").model
    report = st.inspect(model, to="2x", memory_gib=40)
    original, flags, *cuts = report.shapes
    assert flags.shape == "no cut in bfloat16" and flags.share == 0.5
    assert original.sequences and all(row.sequences for row in cuts)
    assert all((row.sequences or 0) >= 2 * original.sequences for row in cuts)
    assert "6heads in bfloat16" in {row.shape for row in cuts}


STATE = Geometry((0, 1, 2), 16, 32, 128, 128)


def within(share: float) -> Callable[[Shape], bool]:
    return lambda shape: shape.numel <= share * 128 * 128


def refusing(model_type: str, shape: Shape) -> set[str]:
    lines = compatibility_of_shape(model_type, shape)
    return {line.engine for line in lines if line.verdict in ("refused", "wrong")}


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25, 0.1])
@pytest.mark.parametrize("engine", [None, "vLLM", "SGLang", "MLX-LM", "llama.cpp", "transformers"])
@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5"])
def test_every_candidate_fits_and_is_served(
    model_type: str, engine: str | None, share: float
) -> None:
    result = candidate_shapes(model_type, STATE, within(share), engine)
    assert result
    for shape, refused in result.items():
        assert shape.numel <= share * 128 * 128
        assert set(refused) == refusing(model_type, shape) and engine not in refused


def test_narrow_heads_have_no_empty_and_repeated_cuts() -> None:
    shapes = common_shapes(Geometry((0,), 1, 1, 3, 2))
    assert shapes and len(shapes) == len({*shapes}) and all(shape.numel for shape in shapes)


def test_a_half_that_vllm_serves_is_no_key_cut() -> None:
    """vLLM's kernels refuse 64x128, the shape of the paper."""
    shapes = set(map(str, candidate_shapes("qwen3_next", STATE, within(0.5), "vLLM")))
    assert "64x128" not in shapes and {"80x96", "96x80"} <= shapes


def test_shapes_that_every_engine_serves_come_first() -> None:
    refused = candidate_shapes("qwen3_next", STATE, within(0.5))
    first, *others = refused
    assert str(first) == "64x64" and not refused[first]
    assert {"64x128", "128x64"} <= set(map(str, others))


def test_no_candidate_contains_another_of_its_group() -> None:
    _, *others = candidate_shapes("qwen3_next", STATE, within(0.5))
    for first, second in permutations(others, 2):
        wider = first.head_k_dim >= second.head_k_dim
        assert not (wider and first.head_v_dim >= second.head_v_dim)


def test_an_engine_that_does_not_serve_the_model_type_is_named() -> None:
    with pytest.raises(st.StatetrimError, match="MLX-LM does not take qwen3_5_text, cut or not"):
        check_engine("MLX-LM", "qwen3_5_text")
    with pytest.raises(st.StatetrimError, match="vLLM is not known to serve delta_net at all"):
        check_engine("vLLM", "delta_net")
