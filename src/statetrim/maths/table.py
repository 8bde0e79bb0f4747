"""A table of text, and how a notebook shows it: escaped, and of bounded size."""

from collections.abc import Sequence
from dataclasses import dataclass

from .formatting import shorten

MAX_ROWS, MAX_COLUMNS, MAX_CHARACTERS = 64, 16, 120
_TEMPLATE = """<table>
<caption style="text-align: left">{{ title }}</caption>
{%- if header %}
<thead>
<tr>{% for cell in header %}<th style="text-align: left">{{ cell }}</th>{% endfor %}</tr>
</thead>
{%- endif %}
<tbody>
{%- for row in rows %}
<tr>{% for cell in row %}<td style="text-align: left">{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody>
</table>
{%- if more %}
<p>and {{ more }} rows more</p>
{%- endif %}"""


@dataclass(frozen=True)
class Table:
    """What a person wants to know of a thing; names in it may be anybody's."""

    title: str
    header: Sequence[str]  # empty: the first column names what stands in the second
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        from jinja2 import Environment

        return (
            Environment(autoescape=True)
            .from_string(_TEMPLATE)
            .render(
                title=shorten(self.title, MAX_CHARACTERS),
                header=_cells(self.header),
                rows=[_cells(row) for row in self.rows[:MAX_ROWS]],
                more=max(0, len(self.rows) - MAX_ROWS),
            )
        )


def _cells(row: Sequence[str]) -> list[str]:
    return [shorten(cell, MAX_CHARACTERS) for cell in row[:MAX_COLUMNS]]
