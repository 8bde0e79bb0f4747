"""A document -> one self-contained HTML page; the Jinja templates escape all values."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .document import Document, as_sentence
from .drawing import Drawing
from .theme import DARK, LIGHT, STROKES


def render_page(document: Document) -> str:
    """The page: no scripts, no external links, nothing to fetch."""
    drawing_css = _drawing_css({name: f"var(--{name})" for name in LIGHT})
    style = _render("report.css", light=LIGHT, dark=DARK, drawing=drawing_css)
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _render("report.html", document=document, style=Markup(style), style_digest=style_hash)


def standalone_svg(drawing: Drawing) -> str:
    """The drawing as an SVG file, in the colours of the light scheme."""
    style = _drawing_css(LIGHT)
    return _render("figure.svg", drawing=drawing, style=style, ground=LIGHT["ground"])


def _drawing_css(colours: Mapping[str, str]) -> Markup:
    """CSS for the shapes of a drawing; `colours` maps names of the theme to CSS colours."""
    return Markup(_render("drawing.css", colours=colours, strokes=STROKES))


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = as_sentence
    return environment
