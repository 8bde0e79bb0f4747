"""The file, version and model digest of every artifact."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..document import Block, Table
from ..findings import Findings
from ..records import as_mapping, truncated_text

TITLE = "Lineage"


def blocks(findings: Findings) -> Iterator[Block]:
    """A table of plan, analysis, scores, timings, decision, records and checkpoints with weights.

    Sensitivity and verifications have no row.
    """
    artifacts: dict[str, Any] = {
        "plan": findings.plan,
        "analysis": findings.analysis,
        "scores": findings.scores,
        "timings": findings.timings,
        "decision": findings.decision,
    }
    records: dict[str, Mapping[str, Any]] = {}
    for name, artifact in artifacts.items():
        if artifact is not None:
            records[name] = as_mapping(artifact.lineage)
    for name, record in (
        ("prune", findings.prune),
        ("refit", findings.refit),
        ("trim", findings.trim),
        ("recovery", findings.recovery),
    ):
        if record:
            records[name] = record
    rows = []
    for name, lineage in records.items():
        digest = lineage.get("source") or lineage.get("student") or lineage.get("baseline")
        version = truncated_text(lineage.get("statetrim"))
        rows.append((name, findings.sources.get(name, ""), version, truncated_text(digest)))
    for label, name, checkpoint in (
        ("checkpoint before", "original", findings.original),
        ("checkpoint after", "cut", findings.cut),
    ):
        if checkpoint is not None and checkpoint.shards:
            rows.append((label, findings.sources[name], "", truncated_text(checkpoint.digest)))
    yield Table(("artifact", "file", "statetrim", "model digest"), rows)
