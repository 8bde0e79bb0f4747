"""Fixtures for tests that need a trained model; import them by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.forker import Forker

STUDIES = Path(__file__).parents[2] / "studies"


def train_tiny(forker: Forker, kind: str, out: Path, *options: str) -> str:
    """Run studies/train_tiny.py with one thread; returns its standard output."""
    words = [str(STUDIES / "train_tiny.py"), kind, str(out), "--threads", "1", *options]
    ended = forker.run(words, script=True)
    assert ended["code"] == 0, ended["err"]
    return str(ended["out"])


@pytest.fixture(scope="session")
def recall_checkpoint(tmp_path_factory: pytest.TempPathFactory, warm_forker: Forker) -> Path:
    """A DeltaNet of 117 thousand parameters, trained to recall 16 pairs."""
    out = tmp_path_factory.mktemp("tiny") / "delta_net"
    train_tiny(warm_forker, "delta_net", out, "--preset", "fixture")
    return out
