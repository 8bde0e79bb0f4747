"""Fills the tables of results/paper.md from committed rows, and draws its pictures.

    python studies/paper/ledger.py page

It fills the places `<!-- table NAME -->`. Between `<!-- claims NAME -->` and `<!-- end -->` the
claims are written by hand; our figure and the verdict of each are computed.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from claims import Decide, Evidence, Outcome
from claims_method import METHOD, SPEED
from claims_pca import PCA
from claims_quality import COUPLING, QUALITY
from claims_recovery import RECOVERY
from claims_state import RANK
from figures import table
from ledger_pictures import draw
from ledger_tables import TABLES
from runner import fill, start

SECTIONS: dict[str, tuple[Decide, ...]] = {
    "quality": QUALITY,
    "recovery": RECOVERY,
    "coupling": COUPLING,
    "pca": PCA,
    "rank": RANK,
    "speed": SPEED,
    "method": METHOD,
}


def decided(evidence: Evidence) -> dict[str, list[tuple[str, str]]]:
    """Section -> our figure and verdict of each claim; "not run" if rows are missing."""

    def outcome(decide: Decide) -> Outcome | tuple[str, str]:
        try:
            return decide(evidence)
        except LookupError:
            return "", "not run"

    return {name: [outcome(decide) for decide in claims] for name, claims in SECTIONS.items()}


def claims_table(written: str, outcomes: list[tuple[str, str]]) -> str:
    """The table with the claims as they are written, and the outcomes in their columns."""
    header, _, *rows = [line[2:-2].split(" | ") for line in written.split("\n")]
    lines = []
    for (claim, paper, _, _, otherwise), (figure, verdict) in zip(rows, outcomes, strict=True):
        lines.append([claim, paper, figure, f"**{verdict}**", otherwise])
    return table(header, lines, left=len(header))


def counts(outcomes: dict[str, list[tuple[str, str]]]) -> str:
    """A table of the number of claims per verdict."""
    verdicts = Counter(verdict for claims in outcomes.values() for _, verdict in claims)
    rows = [[name, str(count)] for name, count in verdicts.most_common()]
    return table(["verdict", "measured claims"], rows)


def page(results: Path) -> None:
    evidence, document = Evidence(results), results / "paper.md"
    outcomes, text = decided(evidence), document.read_text()
    contents = {"table counts": counts(outcomes)}
    for name, claims in outcomes.items():
        written = re.search(rf"<!-- claims {name} -->\n\n(.*?)\n\n<!-- end -->", text, re.S)
        assert written is not None, name
        contents[f"claims {name}"] = claims_table(written[1], claims)
    for name, make_table in TABLES.items():
        contents[f"table {name}"] = make_table(evidence)
    fill(document, contents)
    draw(evidence, results / "paper")


if __name__ == "__main__":
    start(page)
