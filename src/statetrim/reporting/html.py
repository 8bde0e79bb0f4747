"""A document -> one page that needs nothing else; the templates escape all they are given."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .document import Document, as_sentence
from .drawing import Drawing
from .theme import DARK, LIGHT, STROKES


def render_page(document: Document) -> str:
    """Without scripts, links to other places, or anything to fetch."""
    style = (
        _environment()
        .get_template("report.css")
        .render(
            light=LIGHT,
            dark=DARK,
            drawing=_drawing_css({name: f"var(--{name})" for name in LIGHT}),
        )
    )
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        _environment()
        .get_template("report.html")
        .render(document=document, style=Markup(style), style_digest=style_hash)
    )


def standalone_svg(drawing: Drawing) -> str:
    """A file of its own, in the colours of the light page."""
    return (
        _environment()
        .get_template("figure.svg")
        .render(drawing=drawing, style=_drawing_css(LIGHT), ground=LIGHT["ground"])
    )


def _drawing_css(colours: Mapping[str, str]) -> Markup:
    """How the shapes of a drawing look, in these colours."""
    return Markup(
        _environment().get_template("drawing.css").render(colours=colours, strokes=STROKES)
    )


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
