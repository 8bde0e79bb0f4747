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


def parts_kept(after: st.Geometry, before: st.Geometry) -> dict[str, Any]:
    """What a cut leaves along each axis; of widths by layer each shape with its share of layers."""
    shapes = [
        (keys / before.head_k_dim, values / before.head_v_dim)
        for keys, values in after.shapes.values()
    ]
    return {
        "key heads": after.num_k_heads / before.num_k_heads,
        "value heads": after.num_v_heads / before.num_v_heads,
        "shapes": {shape: shapes.count(shape) / len(shapes) for shape in set(shapes)},
    }


def test_gain_and_loss_of_a_lever_are_of_the_same_cut(front: Any) -> None:
    """Along every axis, of models with as many value heads for each key head."""
    served, small = st.open(front.CONFIG), st.open(ROOT / "models" / front.MEASURED)
    assert served.geometry.group == small.geometry.group
    for lever in front.levers(served.geometry, RESULTS):
        request = "" if lever.measured == front.NO_CUT else lever.measured
        gains, losses = (
            parts_kept(front.geometry_of(model, each), model.geometry)
            for model, each in ((served, lever.request), (small, request))
        )
        assert gains.pop("shapes") == pytest.approx(losses.pop("shapes"), abs=0.02), lever.name
        assert gains == losses, lever.name


def test_the_plugin_stores_its_widths_by_layer_in_equal_pages(front: Any) -> None:
    model = st.open(front.CONFIG)
    by_layer = [lever for lever in front.levers(model.geometry, RESULTS) if "=" in lever.request]
    for lever in by_layer:
        after = front.geometry_of(model, lever.request)
        heads = after.num_k_heads, after.num_v_heads
        layers = {pages.Heads(*heads, *shape) for shape in set(after.widths)}
        size = page_size(2, 2 * 3)  # a bfloat16 state, three inputs of the convolution
        sizes = {size(layer.part(pages.number_of_parts(layer, layers, size))) for layer in layers}
        assert min(sizes) > 0.9 * max(sizes), "a page of a wide layer's part is filled"
    assert len(by_layer) == 1
