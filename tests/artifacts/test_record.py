"""Artifacts: what their reader refuses, where a cut comes from, and the ratio that timings show."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.quantized import FORMATS, quantize_checkpoint
from helpers.tiny import Load
from statetrim.artifacts.record import Artifact
from statetrim.artifacts.steps import read_origin
from statetrim.artifacts.timings import Timing
from statetrim.benchmarking.benchmark import median_and_quartiles
from statetrim.errors import StatetrimError


@dataclass(frozen=True)
class Wheel:
    size: int
    load: float = 0.0

    def validate(self) -> None:
        if self.size < 1:
            raise ValueError("size must be positive")


@dataclass(frozen=True)
class Cart(Artifact):
    KIND = "cart"

    name: str
    kind: Literal["hand", "ox"]
    wheels: list[Wheel]
    spread: tuple[float, float] | None = None
    by_number: Mapping[int, float] = field(default_factory=dict)
    lineage: dict[str, Any] = field(default_factory=dict)


CART = Cart("a", "ox", [Wheel(1), Wheel(2, 0.5)], (0.0, 1.0), {7: 0.25}, {"by": ["x", None]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    CART.save(tmp_path / "cart.json")
    return tmp_path / "cart.json"


def test_it_is_read_as_it_was_written(path: Path) -> None:
    assert Cart.load(path) == CART
    names = ["format", "version", "name", "kind", "wheels", "spread", "by_number", "lineage"]
    assert list(json.loads(path.read_text())) == names


@pytest.mark.parametrize(
    ("change", "place"),
    [
        *load_cases("wrong-fields"),
        ({"wheels": [{"size": 1, "load": 10**400}]}, "wheels[0].load: "),
        ({"lineage": {"data": [{"count": 10**400}]}}, "lineage.data.0.count: "),
    ],
)
def test_the_wrong_field_is_named(change: dict[str, Any], place: str, path: Path) -> None:
    tiny.edit_json(path, **change)
    with pytest.raises(StatetrimError) as refusal:
        Cart.load(path)
    text = str(refusal.value).replace("at key", "key")
    assert text.startswith(f"{path} is not valid: {place}") and text.isprintable()


def test_the_file_is_checked_before_its_fields(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cart, "KIND", "waggon")
    with pytest.raises(StatetrimError, match="not a statetrim waggon"):
        Cart.load(path)
    monkeypatch.setattr(Cart, "MAX_BYTES", 8)
    with pytest.raises(StatetrimError, match="MiB"):
        Cart.load(path)


@pytest.mark.parametrize("to", ["6x100%", "2heads"])
def test_a_random_cut_is_known_by_its_method(to: str, checkpoint: Load, tmp_path: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    plan = st.select(model, "rand", to)
    cut = st.prune(model, plan, tmp_path / "cut")
    origin = read_origin(cut, model)
    assert origin is not None
    assert origin["methods"] == ["rand"]


def test_a_damaged_plan_of_a_cut_is_said(
    checkpoint: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    cut = st.prune(model, st.select(model, "rand", "6x100%"), tmp_path / "cut")
    path = cut.path / "statetrim" / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": "x"}))
    origin = read_origin(cut, model)
    assert origin is not None and origin["methods"] == []
    assert "was cut from and by is not known" in caplog.text and "seed" in caplog.text


def test_a_quantised_release_cut_by_the_plan_of_its_16_bit_model_is_the_source(
    checkpoint: Load, tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    plan = st.select(model, to="6x100%", method="rand")
    form = FORMATS["fine-grained fp8"]
    release = st.open(quantize_checkpoint(model.path, tmp_path / "fp8", form))
    origin = read_origin(st.prune(release, plan, tmp_path / "cut"), release)
    assert origin is not None
    assert origin["source"] == release.digest


SECONDS = {"original": [1.0, 2.0, 4.0, 1.6, 2.0], "cut": [0.9, 2.6, 3.0, 1.5, 2.2]}
"""A noisy machine: the cut is faster in three rounds of five, and its median is slower."""


def timings(seconds: dict[str, list[float]]) -> st.Timings:
    records = list[Timing]()
    for name, times in seconds.items():
        value, spread = median_and_quartiles([400 / each for each in times])
        turns = zip(seconds["original"], times, strict=True)
        ratio, within = median_and_quartiles([old / new for old, new in turns])
        first = not records
        records.append(
            Timing(name, "decode", 1, 64, value, "tokens/s", spread, None if first else ratio,
                   None if first else within)
        )  # fmt: skip
    return st.Timings(list(seconds), records)


def shown(measured: st.Timings) -> tuple[float, float, float, str]:
    """Both medians, their ratio, and the remark on noise, from the table."""
    (row,) = measured.table().rows
    match = re.fullmatch(r"([\d,]+) \(([\d.]+)x(.*)\)", row[4])
    assert match
    return float(row[3]), float(match[1]), float(match[2]), match[3]


def test_the_ratio_is_that_of_the_figures_shown() -> None:
    measured = timings(SECONDS)
    assert measured.records[1].ratio and measured.records[1].ratio > 1.0
    before, after, ratio, remark = shown(measured)
    assert after < before and abs(ratio - after / before) < 0.01
    assert remark == ", within noise"


def test_a_difference_in_every_round_is_no_noise() -> None:
    steady = {"original": [1.0, 2.0, 4.0], "cut": [0.5, 1.0, 2.0]}
    assert shown(timings(steady))[2:] == (2.0, "")
