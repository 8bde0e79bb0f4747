"""results/quantised.json -> the tables of results/quantised.md: formats by steps.

python studies/table_quantised.py results/quantised.json results/quantised.md
"""

from __future__ import annotations

import json
import re
from typing import Any

from arguments import path_parser

STEPS = ("inspect", "prune", "prune, sibling's plan", "refit", "evaluate", "verify")
_WORDS = {"run": "yes", "refused": "refused", "not applicable": "n/a"}


def matrix(rows: dict[str, Any]) -> str:
    """A table of outcomes; refusals have a number, and their sentences follow."""
    lines = [["format", *STEPS], ["---"] * (1 + len(STEPS))]
    sentences: list[str] = []
    for name, cells in rows.items():
        line = [name]
        for step in STEPS:
            cell = cells[step]
            word = _WORDS[cell["outcome"]]
            if cell["outcome"] == "refused":
                if cell["detail"] not in sentences:
                    sentences.append(cell["detail"])
                word += f" ({1 + sentences.index(cell['detail'])})"
            elif step == "prune" and cell["outcome"] == "run":
                word = short_error(cell["detail"])
            line.append(word)
        lines.append(line)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    numbered = [f"{number}. {code(text)}" for number, text in enumerate(sentences, 1)]
    return "\n".join([table, "", *numbered])


def short_error(detail: str) -> str:
    """ "exact", or the largest error of the weights that were quantised again."""
    match = re.search(r"error (\S+%) at most", detail)
    return f"error {match[1]}" if match else detail


def code(text: str) -> str:
    return f"`{text.replace('`', '')}`"


def losses(rows: dict[str, Any]) -> str:
    """KL divergences from the 16-bit cut: of the cut release, and of the cut quantised."""
    lines = [["format", "quantised, then cut", "cut, then quantised"], ["---", "---:", "---:"]]
    for name, cells in rows.items():
        figures = re.findall(r"\d\.\de[+-]\d+", cells["prune, sibling's plan"]["detail"])
        if len(figures) == 2:
            lines.append([name, *figures])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    options = path_parser(__doc__, "results", "document").parse_args()
    rows = json.loads(options.results.read_text())["rows"]
    text = options.document.read_text()
    for place, table in (("matrix", matrix(rows)), ("losses", losses(rows))):
        start, _, rest = text.partition(f"<!-- {place} -->")
        end = rest.partition("<!-- end -->")[2]
        text = f"{start}<!-- {place} -->\n\n{table}\n\n<!-- end -->{end}"
    options.document.write_text(text)


if __name__ == "__main__":
    main()
