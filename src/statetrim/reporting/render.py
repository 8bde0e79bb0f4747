"""A document -> one self-contained HTML page, and Markdown; both escape all text."""

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ..artifacts.card.markdown import escape, one_line
from .charts import Chart
from .document import Document, as_sentence
from .theme import DARK, LIGHT


def render_page(document: Document) -> str:
    """The page: no scripts, no external links, nothing to fetch."""
    style = _render("report.css", light=LIGHT, dark=DARK)
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _render("report.html", document=document, style=Markup(style), style_digest=style_hash)


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=select_autoescape(["html", "css"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"sentence": as_sentence, "svg": _svg}
    environment.filters |= {"plain": escape, "one_line": one_line}  # of Markdown
    return environment


def _svg(chart: Chart) -> Markup:
    from .figures import inline_svg  # a page without charts needs no matplotlib

    return Markup(inline_svg(chart))


def render_markdown(document: Document) -> str:
    """The document as Markdown; of pictures only the captions."""
    return _render("report.md.jinja", document=document) + "\n"
