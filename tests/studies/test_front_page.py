"""The table of the README: gains and losses of a row are of one cut, which vLLM serves."""

import importlib
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers.plugin_pages import page_size, pages

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "studies")
    return importlib.import_module("front_page")


def test_gain_and_loss_of_a_lever_are_of_the_same_part_of_the_state(front: Any) -> None:
    model = st.open(front.CONFIG)
    for lever in front.levers(model.geometry, RESULTS):
        kept = front.geometry_of(model, lever).state_numel / model.geometry.state_numel
        assert lever.loss is None or kept == pytest.approx(lever.loss.share, abs=1e-3), lever.name


def test_the_plugin_stores_its_widths_by_layer_in_equal_pages(front: Any) -> None:
    model = st.open(front.CONFIG)
    by_layer = [lever for lever in front.levers(model.geometry, RESULTS) if "=" in lever.request]
    for lever in by_layer:
        after = front.geometry_of(model, lever)
        heads = after.num_k_heads, after.num_v_heads
        layers = {pages.Heads(*heads, *shape) for shape in set(after.widths)}
        size = page_size(2, 2 * 3)  # a bfloat16 state, three inputs of the convolution
        sizes = {size(layer.part(pages.number_of_parts(layer, layers, size))) for layer in layers}
        assert min(sizes) > 0.9 * max(sizes), "a page of a wide layer's part is filled"
    assert len(by_layer) == 1
