"""A figure that a run of `trim` shows in several places is the same in all of them."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.refusal import run
from statetrim.families.contract import resized_config
from statetrim.maths.formatting import bytes_text
from statetrim.serving.capacity.arithmetic import Settings
from statetrim.serving.capacity.compare import cache_model
from statetrim.serving.engines.vllm import vllm

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths
BEFORE, AFTER = (16, 16), (8, 8)


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory, text: Path) -> tuple[Path, Path, str, str]:
    """A tiny hybrid whose shapes vLLM serves, its cut, and what `trim` printed."""
    folder = tmp_path_factory.mktemp("figures")
    dims = {"linear_key_head_dim": BEFORE[0], "linear_value_head_dim": BEFORE[1]}
    model = tiny.build("qwen3_next", folder / "model", **dims)
    words = f"trim {model} --to 8x8,4x4 --text {text} --tokens 1024 --length 64 --limit 2"
    words += f" --batch-size 2 --no-control -o {folder / 'small'}"
    code, stderr, stdout = run(words.split())
    assert code is None, stderr
    return model, folder / "small", stderr, stdout


def expected_counts(model: Path) -> dict[str, tuple[float, float]]:
    """dtype -> sequences of 4,096 tokens in 16 GiB before and after, by vLLM's arithmetic alone."""
    original = st.open(model)
    chosen = original.geometry.resized(*AFTER)
    counts = {}
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        settings = Settings(memory=16 * 2**30, context=4096, state_bytes=size)
        fits = [vllm(cache_model(original, x), settings) for x in (original.geometry, chosen)]
        counts[dtype] = (fits[0].sequences, fits[1].sequences)
    resized_config(original.family, original.config, chosen)  # the shape can be written
    return counts


NUMBER = r"([\d,]+\.?\d*)(?: \([\d.]+x\))?"
PAIR = re.compile(rf"{NUMBER} → {NUMBER} in (?:bfloat16|float32)")
"""Sequences before and after, without gains in brackets."""


def test_sequences_are_those_of_the_engine_everywhere(trimmed: tuple[Path, Path, str, str]) -> None:
    model, small, stderr, stdout = trimmed
    decision = json.loads((small / "statetrim" / "decision.json").read_text())
    assert st.open(small).geometry.shape == "8 x 8", "the smaller one loses more"
    counts = expected_counts(model)
    texts = {dtype: tuple(f"{x:,.1f}" for x in both) for dtype, both in counts.items()}
    report = small / "statetrim" / "report"
    pages = {
        "terminal": stdout,
        "report.md": (report / "report.md").read_text(),
        "report.html": html.unescape((report / "report.html").read_text()),
    }
    for name, page in pages.items():
        assert set(PAIR.findall(page)) == set(texts.values()), name
    assert "in bfloat16, its default" in stdout, "vLLM's dtype of the state is the baseline"
    original, *cuts = decision["points"]
    assert original["sequences"] == counts["bfloat16"][0]
    assert next(x for x in cuts if x["shape"][0] == 8)["sequences"] == counts["bfloat16"][1]
    for table in (stdout, stderr, pages["report.md"]):
        row = next(line for line in table.splitlines() if re.search(r"[│|] 8x8\b.*%", line))
        assert texts["bfloat16"][1] in row


def test_json_python_and_inspect_agree(trimmed: tuple[Path, Path, str, str]) -> None:
    model, small, *_ = trimmed
    counts = expected_counts(model)
    words = ["inspect", str(model), "--to", "8x8", "--memory-gib", "16"]
    listed: list[Any] = [json.loads(run([*words, "--json"])[2])["deployment"]["capacity"]]
    record = json.loads((small / "statetrim" / "trim.json").read_text())
    assert record["to"] == "8x8,4x4"
    python = st.inspect(model, to="8x8", memory_gib=16)
    listed.append(python.as_json()["deployment"]["capacity"])
    for rows in listed:
        for row in rows:
            assert row["fit"]["sequences"] == counts[row["state_dtype"]][row["is_cut"]]
            assert row["is_default"] == (row["state_dtype"] == "bfloat16")
    shown = run(words)[2]
    for both in counts.values():
        for count in both:
            assert f"{count:,.1f}" in shown
    shapes = st.inspect(model, to="8x8,4x4", memory_gib=16).shapes
    assert [x.sequences for x in shapes[:2]] == list(counts["bfloat16"])


def test_bytes_are_the_same_and_name_their_dtype(trimmed: tuple[Path, Path, str, str]) -> None:
    model, small, _, stdout = trimmed
    numel = st.open(model).geometry.state_numel, st.open(small).geometry.state_numel
    float32 = [bytes_text(4 * x) for x in numel]
    bfloat16 = [bytes_text(2 * x) for x in numel]
    shown = run(["inspect", str(model), "--to", "8x8"])[2]
    page = (small / "statetrim" / "report" / "report.md").read_text()
    card = (small / "README.md").read_text()
    for text in (shown, page, card):
        for name, sizes in (("state per sequence, float32", float32), ("the same in", bfloat16)):
            row = next(line for line in text.splitlines() if name in line)
            assert re.findall(r"[\d.]+ [KM]iB", row) == sizes
    for text in (stdout, page):
        assert f"{' → '.join(float32)} in float32, {' → '.join(bfloat16)} in bfloat16" in text
    decision = json.loads((small / "statetrim" / "decision.json").read_text())
    assert decision["points"][0]["state_bytes"] == 4 * numel[0]
