"""What a cut and a quantiser lose, alone and together -> the tables of results/quantised.md.

python studies/table_quantisers.py quantise-cut.json quantise-gguf.json quantise-check.json PAGE
"""

from __future__ import annotations

import json
import re
from typing import Any

from arguments import path_parser

Row = dict[str, Any]


def losses(rows: list[Row], key: str, plain: str) -> list[list[str]]:
    """Lines of NLL and recall, and of nats that cut, quantiser and both lose against the original.

    `key` names the field with the tool; `plain` is its value for unquantised models.
    """
    by_model = {(row["model"], row[key]): row for row in rows}
    original, cut = by_model["original", plain], by_model["cut", plain]
    lines = []
    for tool in dict.fromkeys(row[key] for row in rows):
        pair = [by_model[name, tool] for name in ("original", "cut")]
        scores = [f"{row['nll']:.4f}, {100 * row['recall']:.1f} %" for row in pair]
        by_quantiser, both = (row["nll"] - original["nll"] for row in pair)
        on_cut = pair[1]["nll"] - cut["nll"]
        if tool == plain:
            lines.append([tool, *scores, "", "", f"{both:+.4f}"])
        else:
            lines.append([tool, *scores, f"{by_quantiser:+.4f}", f"{on_cut:+.4f}", f"{both:+.4f}"])
    return lines


def checks(rows: dict[str, Row]) -> list[list[str]]:
    """Lines of perplexities by `evaluate`, and of shares of equal choices by `verify`."""
    lines = []
    for tool, steps in rows.items():
        line = [tool.replace("-", " ").replace("llm compressor", "llm-compressor")]
        evaluated = steps.get("evaluate")
        if evaluated is None:
            line += ["n/a", "n/a"]
        elif "refused" in evaluated:
            line += ["refused", "refused"]
        else:
            for name in ("original", "cut"):
                line.append(f"{evaluated[f'{name}-{tool} perplexity']:.2f}")
        lines.append(line + [share(steps["verify"], name) for name in ("original", "cut")])
    return lines


def share(verified: Row, name: str) -> str:
    """Equal choices in texts and continuations, in percent; "refused" if it did not run."""
    shares = []
    for label, value in verified.get("agreed", {}).items():
        if label.startswith(name):
            shares.append(f"{100 * value:.1f} %")
    return ", ".join(shares) or "refused"


def sentences(rows: dict[str, Row]) -> str:
    """The distinct sentences of refusals, without names of checkpoints."""
    refusals: list[str] = []
    for steps in rows.values():
        for step in steps.values():
            refusals += [step["refused"]] if "refused" in step else []
            refusals += step.get("refusals", {}).values()
    cleaned = [re.sub(r"\b(original|cut)-\S+", "MODEL", text) for text in refusals]
    return "\n".join(f"- `{text.replace('`', '')}`" for text in dict.fromkeys(cleaned))


def table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def main() -> None:
    options = path_parser(__doc__, "tools", "gguf", "check", "document").parse_args()
    tools, gguf, checked = (
        json.loads(path.read_text()) for path in (options.tools, options.gguf, options.check)
    )
    header = [
        "", "original", "cut", "lost by the quantiser", "on the cut", "by cut and quantiser",
    ]  # fmt: skip
    lines = losses(tools["rows"], "tool", "none")
    lines += losses(gguf["rows"], "type", "F32")
    tables = {
        "quantisers": table(header, lines),
        "checks": "\n\n".join(
            [
                table(
                    ["", "perplexity, original", "cut", "verified, original", "cut"],
                    checks(checked),
                ),
                sentences(checked),
            ]
        ),
    }
    text = options.document.read_text()
    for place, content in tables.items():
        start, _, rest = text.partition(f"<!-- {place} -->")
        end = rest.partition("<!-- end -->")[2]
        text = f"{start}<!-- {place} -->\n\n{content}\n\n<!-- end -->{end}"
    options.document.write_text(text)


if __name__ == "__main__":
    main()
