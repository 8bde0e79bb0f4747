"""A table of text, and its HTML for notebooks: escaped and of bounded size."""

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
    """Rows of text for people; cells may come from untrusted files."""

    title: str
    header: Sequence[str]  # empty: each row is a name and a value
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        """The table, escaped; a line below gives the number of rows left out."""
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


class Tabular:
    """Something that notebooks show as its table."""

    def table(self) -> Table:
        """A summary for people."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.table().html()


def _cells(row: Sequence[str]) -> list[str]:
    return [shorten(cell, MAX_CHARACTERS) for cell in row[:MAX_COLUMNS]]
