"""Sizes of folders, files and functions are within the limits of CONTRIBUTING.md."""

from pathlib import Path

import pytest

from helpers.modules import load_module

layout = load_module(Path(__file__).parents[1] / "tools" / "layout.py")
LIMITS = {"folders": 24, "files": 400, "functions": 80}


@pytest.mark.parametrize(("kind", "limit"), LIMITS.items())
def test_nothing_has_grown_too_large(kind: str, limit: int) -> None:
    sizes = getattr(layout.layout(layout.SOURCE), kind)
    assert len(sizes) > 20
    assert {name: size for name, size in sizes.items() if size > limit} == {}
