"""The file, version and model digest of every artifact."""

from collections.abc import Iterator
from typing import Any

from ...artifacts.steps import RecoverRecord, StepRecord
from ..document import Block, Table
from ..findings import Findings
from ..records import truncated_text

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
    steps: dict[str, StepRecord | None] = {
        "prune": findings.prune,
        "refit": findings.refit,
        "trim": findings.trim,
        "recovery": findings.recovery,
    }
    rows = []
    for name, artifact in artifacts.items():
        if artifact is not None:
            lineage = artifact.lineage
            digest = truncated_text(lineage.get("source") or lineage.get("baseline"))
            version = truncated_text(lineage.get("statetrim"))
            rows.append((name, findings.sources.get(name, ""), version, digest))
    for name, record in steps.items():
        if record is not None:
            source = record.student if isinstance(record, RecoverRecord) else record.source
            digest, version = truncated_text(source), truncated_text(record.statetrim)
            rows.append((name, findings.sources.get(name, ""), version, digest))
    for label, name, checkpoint in (
        ("checkpoint before", "original", findings.original),
        ("checkpoint after", "cut", findings.cut),
    ):
        if checkpoint is not None and checkpoint.shards:
            rows.append((label, findings.sources[name], "", truncated_text(checkpoint.digest)))
    yield Table(("artifact", "file", "statetrim", "model digest"), rows)
