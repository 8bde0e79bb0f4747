"""Targets from requests: channels, memory, heads, by layer, for an engine, and several."""

import json
from pathlib import Path

import pytest

import statetrim as st
from helpers.cases import load_cases
from helpers.raw import RELEASED
from statetrim.cut.request import parse_request
from statetrim.serving.candidates import Goal, candidate_targets, listed_targets
from statetrim.serving.engines import find_engine
from statetrim.serving.options import CacheOptions
from statetrim.serving.target import Target, resolve_target

QWEN = RELEASED["Qwen3-Next-80B-A3B"]  # 36 linear layers of 32 heads with 128 x 128


@pytest.fixture
def qwen(tmp_path: Path) -> st.Checkpoint:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return st.open(tmp_path / "config.json")


@pytest.fixture
def by_layer(tmp_path: Path) -> st.Checkpoint:
    """A cut by layer: 128x128, 96x64 and 34 of 64x64, each of 32 heads."""
    layers = [layer for layer in range(48) if (layer + 1) % 4]
    widths = {str(layer): [64, 64] for layer in layers} | {"0": [128, 128], "1": [96, 64]}
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"statetrim_widths": widths}))
    return st.open(tmp_path / "config.json")


def shape(target: Target) -> tuple[int, int]:
    return target.after.head_k_dim, target.after.head_v_dim


def resolve(model: st.Checkpoint, to: str, for_: str | None = None) -> Target:
    return resolve_target(model, parse_request(to), for_)


@pytest.mark.parametrize(("to", "expected"), load_cases("targets-of-channels"))
def test_channels_or_parts(to: str, expected: list[int], qwen: st.Checkpoint) -> None:
    target = resolve(qwen, to)
    assert [*shape(target)] == expected and str(target) == f"{expected[0]}x{expected[1]}"
    cut = zip(("key", "value"), expected, strict=True)
    assert target.axes == tuple(axis for axis, width in cut if width < 128)
    assert target.after == qwen.geometry.resized(*expected)


def test_a_target_is_said_as_it_is_asked_for(qwen: st.Checkpoint) -> None:
    by_layer = resolve(qwen, "0=64x64,others=32x100%")
    assert resolve(qwen, str(by_layer)) == by_layer and by_layer.after.shapes[1] == (32, 128)
    heads = resolve(qwen, "50%heads")
    assert str(heads) == "16heads" and resolve(qwen, "16heads") == heads


@pytest.mark.parametrize(("to", "engine", "expected"), load_cases("targets-of-engines"))
def test_an_engine_gets_a_shape_it_serves(
    to: str, engine: str, expected: list[int], qwen: st.Checkpoint
) -> None:
    assert [*shape(resolve(qwen, to, engine))] == expected


@pytest.mark.parametrize(("to", "engine", "message"), load_cases("targets"))
def test_what_cannot_be_meant_is_refused(
    to: str, engine: str | None, message: str, qwen: st.Checkpoint
) -> None:
    with pytest.raises(st.StatetrimError, match=message):
        resolve(qwen, to, engine)


def test_shapes_to_compare(qwen: st.Checkpoint) -> None:
    listed = listed_targets(qwen, parse_request("96x96,64x64"))
    assert [(str(target), target.share) for target in listed] == [
        ("96x96", 0.5625),
        ("64x64", 0.25),
    ]
    assert "SGLang" in next(iter(listed.values()))
    with pytest.raises(st.StatetrimError, match="SGLang does not serve a state of 96x96"):
        listed_targets(qwen, parse_request("96x96,64x64"), "sglang")
    with pytest.raises(st.StatetrimError, match="names a shape twice"):
        listed_targets(qwen, parse_request("64x64,50%x50%"))
    report = st.inspect(qwen, to="96x96,64x64")
    assert [row.shape for row in report.shapes] == ["128x128", "96x96", "64x64"]
    shares = [row.share for row in st.inspect(qwen, to="50%").shapes[1:]]
    assert shares and max(shares) <= 0.5


@pytest.mark.parametrize("for_", [None, "vllm"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.25])
def test_a_share_of_a_cut_by_layer_counts_all_its_layers(
    share: float, for_: str | None, by_layer: st.Checkpoint
) -> None:
    elements = 32 * (128 * 128 + 96 * 64 + 34 * 64 * 64)
    assert by_layer.geometry.state_numel == elements
    engine = None if for_ is None else find_engine(for_)
    goal = Goal(by_layer, parse_request(share), engine, CacheOptions().in_engine(engine))
    targets = candidate_targets(goal, goal.default_dtype)
    for target in targets:
        keys, values = shape(target)
        assert max(keys, values) <= 64 or "head" in target.axes, "no layer grows"
        assert target.after.state_numel <= share * elements
    largest = max(target.share for target in targets)
    assert largest > 0.7 * share or for_


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("64x64", {0: (64, 64), 1: (64, 64), 2: (64, 64)}),
        ("50%x100%", {0: (64, 128), 1: (48, 64), 2: (32, 64)}),
    ],
)
def test_no_layer_of_a_cut_by_layer_grows(
    to: str, expected: dict[int, tuple[int, int]], by_layer: st.Checkpoint
) -> None:
    target = resolve(by_layer, to)
    assert {layer: target.after.shapes[layer] for layer in expected} == expected
    assert target.share < 1


@pytest.mark.parametrize(
    ("to", "for_", "refusal"),
    [
        ("96x64", None, "layer 2: cannot keep 96 of 64 channels"),
        ("128x128", None, "layer 1: cannot keep 128 of 96 channels"),
        ("50%x50%", "vllm", "no engine serves layers of different widths"),
    ],
)
def test_what_a_cut_by_layer_lacks_is_refused(
    to: str, for_: str | None, refusal: str, by_layer: st.Checkpoint
) -> None:
    with pytest.raises(st.StatetrimError, match=refusal):
        resolve(by_layer, to, for_)
