"""Fills the tables of results/paper.md from committed rows, and draws its pictures.

    python studies/paper/ledger.py results/paper.md [--pictures results/paper]

It fills the sections `<!-- claims NAME -->` and `<!-- table NAME -->` ... `<!-- end -->`; a test
compares the document with the rows.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from claims import Claim, Evidence, shown
from claims_method import METHOD, SPEED
from claims_pca import PCA
from claims_quality import COUPLING, QUALITY
from claims_recovery import RECOVERY
from claims_state import RANK
from figures import table
from ledger_pictures import draw
from ledger_tables import TABLES

SECTIONS: dict[str, list[Claim]] = {
    "quality": QUALITY,
    "recovery": RECOVERY,
    "coupling": COUPLING,
    "pca": PCA,
    "rank": RANK,
    "speed": SPEED,
    "method": METHOD,
}


def claims_table(claims: list[Claim], evidence: Evidence) -> str:
    rows = []
    for claim in claims:
        result, verdict = shown(claim, evidence)
        title = f"{claim.statement} ({claim.place})"
        rows.append([title, claim.paper_result, result, f"**{verdict}**", claim.otherwise])
    header = ["claim", "the paper", "here", "verdict", "what would have changed our mind"]
    return table(header, rows, right=False)


def counts(evidence: Evidence) -> str:
    """A table of the number of claims per verdict."""
    by_verdict: dict[str, int] = {}
    for claims in SECTIONS.values():
        for claim in claims:
            verdict = shown(claim, evidence)[1]
            by_verdict[verdict] = by_verdict.get(verdict, 0) + 1
    rows = [[name, str(count)] for name, count in sorted(by_verdict.items(), key=lambda x: -x[1])]
    return table(["verdict", "measured claims"], rows)


def section(kind: str, name: str, evidence: Evidence) -> str:
    if kind == "claims":
        return claims_table(SECTIONS[name], evidence)
    return counts(evidence) if name == "counts" else TABLES[name](evidence)


def filled(text: str, evidence: Evidence) -> str:
    """The document with all sections regenerated."""

    def fill(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        try:
            body = section(kind, name, evidence)
        except LookupError:
            body = "Not measured yet."
        return f"<!-- {kind} {name} -->\n\n{body}\n\n<!-- end -->"

    return re.sub(r"<!-- (claims|table) (\S+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("document", type=Path)
    parser.add_argument("--pictures", type=Path, help="a folder to draw them into")
    options = parser.parse_args()
    evidence = Evidence()
    options.document.write_text(filled(options.document.read_text(), evidence))
    if options.pictures:
        draw(evidence, options.pictures)


if __name__ == "__main__":
    main()
