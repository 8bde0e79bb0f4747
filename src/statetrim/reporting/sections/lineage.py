"""The file, version and model digest of every artifact."""

from collections.abc import Iterator
from typing import Any

from ...artifacts.steps import RecoverRecord
from ..document import Block, Table
from ..findings import Findings, truncated_text

TITLE = "Lineage"


def blocks(findings: Findings) -> Iterator[Block]:
    """A table of plan, analysis, scores, timings, decision, records and checkpoints with weights.

    Sensitivity and verifications have no row.
    """
    versions_and_digests: dict[str, tuple[Any, Any]] = {}
    for name in ("plan", "analysis", "scores", "timings", "decision"):
        if (artifact := getattr(findings, name)) is not None:
            lineage = artifact.lineage
            digest = lineage.get("source") or lineage.get("baseline")
            versions_and_digests[name] = lineage.get("statetrim"), digest
    for name in ("prune", "refit", "trim", "recover"):
        if (record := getattr(findings, name)) is not None:
            digest = record.student if isinstance(record, RecoverRecord) else record.source
            versions_and_digests[name] = record.statetrim, digest
    rows = []
    for name, texts in versions_and_digests.items():
        rows.append((name, findings.sources.get(name, ""), *map(truncated_text, texts)))
    for label, name, checkpoint in (
        ("checkpoint before", "original", findings.original),
        ("checkpoint after", "cut", findings.cut),
    ):
        if checkpoint is not None and checkpoint.shards:
            rows.append((label, findings.sources[name], "", truncated_text(checkpoint.digest)))
    yield Table(("artifact", "file", "statetrim", "model digest"), rows)
