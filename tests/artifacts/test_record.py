"""The reader of JSON artifacts: what it refuses, and that it names the file and the field."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from statetrim.artifacts.record import Artifact
from statetrim.errors import StatetrimError


@dataclass(frozen=True)
class Wheel:
    size: int
    load: float = 0.0

    def check(self) -> None:
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
        ({"name": 3}, "name: "),
        ({"kind": "horse"}, "kind: "),
        ({"wheels": None}, "wheels: "),
        ({"wheels": [{}]}, "wheels[0]: Object missing required field size"),
        ({"wheels": [{"size": True}]}, "wheels[0].size: "),
        ({"wheels": [{"size": 2.0}]}, "wheels[0].size: "),
        ({"wheels": [{"size": 1}, {"size": 0}]}, "wheels.1: size must be positive"),
        ({"wheels": [{"size": 1, "load": 1e301}]}, "wheels.0.load: "),
        ({"wheels": [{"size": 1, "load": 10**400}]}, "wheels[0].load: "),
        ({"spread": [1.0]}, "spread: "),
        ({"spread": [0, -1e305]}, "spread.1: "),
        ({"by_number": {"x": 1.0}}, "key in by_number: "),
        ({"lineage": {"data": [{"count": 10**400}]}}, "lineage.data.0.count: "),
        ({"name\x1b[2J": 1, "kind": "\x1b[2J"}, "kind: "),
    ],
)
def test_the_wrong_field_is_named(change: dict[str, Any], place: str, path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
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
