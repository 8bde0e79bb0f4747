"""Charts by matplotlib: as SVG inside a page, whose colours they follow."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from ..errors import StatetrimError
from .charts import LIGHT, Chart

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ImportError:
    raise StatetrimError('figures need matplotlib: pip install "statetrim[report]"') from None

WIDTH = 4.6  # inches of a chart
_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": LIGHT["line"],
    "axes.grid": True,
    "axes.labelcolor": LIGHT["ink"],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "grid.color": LIGHT["line"],
    "lines.markersize": 5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "statetrim",  # equal charts give equal bytes
    "text.color": LIGHT["ink"],
    "text.parse_math": False,  # labels may be untrusted
    "xtick.bottom": False,
    "xtick.color": LIGHT["line"],
    "xtick.labelcolor": LIGHT["faint"],
    "ytick.color": LIGHT["line"],
    "ytick.labelcolor": LIGHT["faint"],
    "ytick.left": False,
}
_PAGE_COLOURS = {colour: f"var(--{name})" for name, colour in LIGHT.items()}


def inline_svg(chart: Chart) -> str:
    """An SVG element whose colours are those of the page, without styles, links and identifiers,
    which a page with a strict policy or with several charts could not hold."""
    with matplotlib.rc_context(_STYLE):
        # Without pyplot, which would keep global state.
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        drawn = Figure(figsize=(WIDTH, chart.height), layout=layout)
        chart.draw(drawn.subplots())
        for axes in drawn.axes:  # a clip path would be a reference
            for artist in axes.get_children():
                artist.set_clip_on(False)
        written = BytesIO()
        drawn.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())  # our own output
    shapes = {}
    for element in root.iter(f"{{{_SVG}}}path"):
        shapes["#" + element.get("id", "")] = element.get("d", "")
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}defs", f"{{{_SVG}}}metadata"):
                parent.remove(child)
        _make_plain(parent, shapes)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": chart.title}
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _make_plain(element: ElementTree.Element, shapes: Mapping[str, str]) -> None:
    """Turn styles into attributes, a reference to one of `shapes` into that shape, and colours of
    the light scheme into variables of the page; drop identifiers and clip paths."""
    if element.tag == f"{{{_SVG}}}use":
        place = element.attrib.pop("x", "0"), element.attrib.pop("y", "0")
        element.tag = f"{{{_SVG}}}path"
        element.set("d", shapes[element.attrib.pop(_LINK)])
        element.set("transform", f"translate({place[0]} {place[1]})")
    for rule in element.attrib.pop("style", "").split(";"):
        name, _, value = rule.partition(":")
        if name.strip() and name.strip() != "font":
            element.set(name.strip(), _PAGE_COLOURS.get(value.strip(), value.strip()))
    if element.tag in (f"{{{_SVG}}}text", f"{{{_SVG}}}path") and element.get("fill") is None:
        element.set("fill", "var(--ink)")
    for name in ("id", "clip-path"):
        element.attrib.pop(name, None)
