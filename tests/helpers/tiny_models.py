"""Fixtures for tests that need a model which learned something; import them by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"


def train_tiny(kind: str, out: Path, *options: str) -> str:
    """Run studies/train_tiny.py, one thread; what it printed."""
    command: list[str | Path] = [
        sys.executable,
        STUDIES / "train_tiny.py",
        kind,
        out,
        "--threads",
        "1",
    ]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="session")
def recall_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeltaNet of 117 thousand parameters, trained from scratch here to recall 16 pairs."""
    out = tmp_path_factory.mktemp("tiny") / "delta_net"
    train_tiny("delta_net", out, "--preset", "fixture")
    return out
