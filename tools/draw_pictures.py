"""Draw the two pictures of docs/how-it-works.md: what pruning removes, and the data flow.

    python tools/draw_pictures.py docs/figures

Plain SVG that follows the reader's light or dark setting.
"""

from __future__ import annotations

import argparse
from pathlib import Path

STYLE = """<style>
text { font: 14px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #1b2430; }
.small { font-size: 12px; fill: #55606e; } .bold { font-weight: 650; }
.middle { text-anchor: middle; } .end { text-anchor: end; } .ground { fill: #ffffff; }
.kept { fill: #0b62a8; } .gone { fill: none; stroke: #b34700; stroke-dasharray: 2 2; }
.box { fill: #f4f6f8; stroke: #aab4c0; } .file { fill: #e3eef8; stroke: #0b62a8; }
.arrow { stroke: #55606e; stroke-width: 1.6; fill: none; marker-end: url(#head); }
.head { fill: #55606e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf0; } .small { fill: #a3adba; } .ground { fill: #12171d; }
  .kept { fill: #6db6f2; } .gone { stroke: #f29b5c; }
  .box { fill: #1b222b; stroke: #55606e; } .file { fill: #17304a; stroke: #6db6f2; }
  .arrow { stroke: #a3adba; } .head { fill: #a3adba; }
}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>"""

KEYS, VALUES, CELL = 12, 8, 17
REMOVED = {1, 4, 5, 8, 10, 11}
REMARK = (
    "Dashed channels go, together with their rows in the projections and convolutions",
    "of queries and keys. Each head loses different ones; nothing else in the file changes.",
)


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title>{STYLE}"
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{words}</text>'


def cells(x: float, y: float, rows: int, columns: list[bool]) -> list[str]:
    """A grid of cells; columns that are False are outlines only."""
    return [
        f'<rect class="{"kept" if kept else "gone"}" x="{x + CELL * column + 1}" '
        f'y="{y + CELL * row + 1}" width="{CELL - 3}" height="{CELL - 3}" rx="2"/>'
        for row in range(rows)
        for column, kept in enumerate(columns)
    ]


def cut() -> str:
    before = [key not in REMOVED for key in range(KEYS)]
    after = [True] * sum(before)
    left, right, top = 100, 470, 92
    parts = [
        text(left, 30, "before: 12 key channels", "bold"),
        text(right, 30, "after: 6 key channels", "bold"),
        text(left - 14, 57, "query, key", "small end"),
        *cells(left, 46, 1, before),
        *cells(right, 46, 1, after),
        text(left - 14, top + 72, "state", "small end"),
        *cells(left, top, VALUES, before),
        *cells(right, top, VALUES, after),
        f'<path class="arrow" d="M{left + KEYS * CELL + 34} 150H{right - 34}"/>',
        text((left + KEYS * CELL + right) / 2, 140, "prune", "middle"),
        text(left, top + VALUES * CELL + 22, "a column is a channel, a row a value", "small"),
        text(right, top + VALUES * CELL + 22, "half the memory", "small"),
        text(left, top + VALUES * CELL + 50, REMARK[0], "small"),
        text(left, top + VALUES * CELL + 68, REMARK[1], "small"),
    ]  # fmt: skip
    return svg(
        680, 318, "A head's state before and after a cut of six of twelve key channels", parts
    )


def flow() -> str:
    def box(x: int, y: int, words: str, kind: str, width: int = 122) -> str:
        return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="34" rx="6"/>' + text(
            x + width / 2, y + 22, words, "middle"
        )

    def arrow(*points: tuple[int, int]) -> str:
        return f'<path class="arrow" d="M{" L".join(f"{x} {y}" for x, y in points)}"/>'

    parts = [
        box(20, 30, "MODEL", "file"),
        box(20, 110, "calibrate", "box"), box(190, 110, "statistics", "file"),
        box(360, 110, "select", "box"), box(530, 110, "plan.json", "file"),
        box(530, 190, "prune", "box"), box(360, 190, "SMALL", "file"),
        box(190, 190, "recover", "box"),
        box(20, 190, "SMALL, trained", "file"),
        box(20, 270, "evaluate, analyze, benchmark: each against MODEL", "box", 462),
        box(530, 270, "report", "box"),
        box(530, 340, "report.html", "file"),
        box(190, 30, "text", "file"),
        arrow((81, 64), (81, 108)), arrow((215, 64), (130, 108)),
        arrow((142, 127), (188, 127)), arrow((312, 127), (358, 127)),
        arrow((482, 127), (528, 127)), arrow((591, 144), (591, 188)),
        arrow((530, 207), (484, 207)), arrow((360, 207), (314, 207)),
        arrow((190, 207), (144, 207)),
        arrow((81, 224), (81, 268)), arrow((421, 224), (421, 268)),
        arrow((482, 287), (528, 287)), arrow((591, 304), (591, 338)),
        text(340, 44, "blue: files, each with its format version and lineage", "small"),
        text(340, 62, "grey: commands, which meet only through those files", "small"),
        text(20, 362, "statetrim trim runs calibrate to evaluate in one go.", "small"),
    ]  # fmt: skip
    return svg(
        680, 388, "Data flow: model and text to statistics, plan, small model, report", parts
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    (out / "cut.svg").write_text(cut(), encoding="utf-8")
    (out / "data-flow.svg").write_text(flow(), encoding="utf-8")


if __name__ == "__main__":
    main()
