"""`trim` on text and generated sequences: selection and refit use the same shares."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


def test_selection_and_refit_take_the_same_mix(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    text = tiny.write_text(tmp_path / "text.jsonl", 2**14)
    small = st.trim(
        checkpoint("delta_net"), to="6x6", text=text, out=tmp_path / "out", tokens=2048,
        recall=0.25, random=0.25, limit=2, batch_size=2, benchmark=False, control=False,
        tasks=("text",),
    )  # fmt: skip
    records = {
        name: json.loads((small.path / "statetrim" / f"{name}.json").read_text())
        for name in ("plan", "refit", "trim")
    }
    shares = records["plan"]["lineage"]["statistics"]["shares"]
    assert shares == records["refit"]["statistics"]["shares"]
    assert shares["recall"] == pytest.approx(0.25, abs=0.02)
    assert sum(shares.values()) == pytest.approx(1) and set(shares) == {"text", "recall", "random"}
    assert (records["trim"]["recall"], records["trim"]["random"]) == (0.25, 0.25)
