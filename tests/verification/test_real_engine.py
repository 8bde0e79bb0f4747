"""A cut in a real engine; weekly.yml installs the newest release and runs:

ENGINE=mlx ENGINE_PYTHON=engine/bin/python pytest tests/verification/test_real_engine.py
"""

import json
import os
from pathlib import Path

import pytest

import statetrim as st
from helpers import tiny

ENGINE, PYTHON = os.environ.get("ENGINE"), os.environ.get("ENGINE_PYTHON")
ROPE = ("rope_theta", "partial_rotary_factor")


@pytest.mark.skipif(not (ENGINE and PYTHON), reason="ENGINE and ENGINE_PYTHON name no engine")
def test_the_engine_answers_like_transformers_before_and_after_a_cut(tmp_path: Path) -> None:
    assert ENGINE and PYTHON
    sizes = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    sizes["full_attention_interval"] = 4  # engines' default, which transformers 5 does not save
    original = tiny.build("qwen3_next", tmp_path / "original", **sizes)
    # RoPE fields at the top level, as on the hub; transformers 5 nests them.
    rope = json.loads((original / "config.json").read_text())["rope_parameters"]
    tiny.edit_json(original / "config.json", **{name: rope[name] for name in ROPE})
    plan = st.select(original, "rand", "64x64")
    small = st.prune(original, plan, tmp_path / "small")
    text = tiny.write_text(tmp_path / "words.jsonl", 2000)
    verification = st.verify(
        small, baseline=original, engine=ENGINE, engine_python=PYTHON, text=text, count=6,
        length=24, generate=5,
    )  # fmt: skip
    assert verification.faults == {} and verification.refusals == {}
    assert all(agreement.share() > 0.9 for agreement in verification.agreements)
