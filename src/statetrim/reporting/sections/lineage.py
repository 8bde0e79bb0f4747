"""Which file says what, and of which model."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..document import Block, Table
from ..findings import Findings
from ..records import brief, mapping

TITLE = "Lineage"


def blocks(found: Findings) -> Iterator[Block]:
    records: dict[str, Mapping[str, Any]] = {}
    if found.plan:
        records["plan"] = found.plan.lineage
    if found.analysis:
        records["analysis"] = found.analysis.lineage
    for name in ("scores", "timings", "sweep"):
        if getattr(found, name):
            records[name] = mapping(getattr(found, name).lineage)
    for name in ("prune", "refit", "trim", "recovery"):
        if getattr(found, name):
            records[name] = getattr(found, name)
    rows = [
        (
            name,
            found.sources.get(name, ""),
            brief(record.get("statetrim")),
            brief(record.get("source") or record.get("student") or record.get("baseline")),
        )
        for name, record in records.items()
    ]
    rows += [
        (f"checkpoint {name}", found.sources[name], "", brief(model.digest))
        for name, model in (("before", found.before), ("after", found.after))
        if model is not None and model.shards
    ]
    yield Table(("artifact", "file", "statetrim", "model digest"), rows)
