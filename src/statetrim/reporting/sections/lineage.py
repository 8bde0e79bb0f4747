"""Which file says what, and of which model."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..document import Block, Table
from ..findings import Findings
from ..records import as_mapping, truncated_text

TITLE = "Lineage"


def blocks(findings: Findings) -> Iterator[Block]:
    records: dict[str, Mapping[str, Any]] = {}
    if findings.plan:
        records["plan"] = findings.plan.lineage
    if findings.analysis:
        records["analysis"] = findings.analysis.lineage
    for name in ("scores", "timings", "sweep"):
        if getattr(findings, name):
            records[name] = as_mapping(getattr(findings, name).lineage)
    for name in ("prune", "refit", "trim", "recovery"):
        if getattr(findings, name):
            records[name] = getattr(findings, name)
    rows = [
        (
            name,
            findings.sources.get(name, ""),
            truncated_text(record.get("statetrim")),
            truncated_text(record.get("source") or record.get("student") or record.get("baseline")),
        )
        for name, record in records.items()
    ]
    rows += [
        (f"checkpoint {name}", findings.sources[name], "", truncated_text(model.digest))
        for name, model in (("before", findings.original), ("after", findings.cut))
        if model is not None and model.shards
    ]
    yield Table(("artifact", "file", "statetrim", "model digest"), rows)
