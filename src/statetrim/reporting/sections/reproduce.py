"""The commands that make an equal cut again, and what every artifact was made from."""

from collections.abc import Iterator

from ...artifacts.steps import StepRecord, data_sources
from ..document import Block, Command, Table, Text
from ..findings import Findings, command_arguments, shell_quoted, truncated_text


def blocks(findings: Findings) -> Iterator[Block]:
    """The recipe, or plan and texts of a refit; then a table of files, versions and digests."""
    plan, arguments = findings.plan, command_arguments(findings)
    digest = truncated_text(plan.lineage.get("source"))
    yield Text(
        f"The original checkpoint has the digest {digest}. The same model, text and options give "
        f"the same bytes."
    )
    if findings.trim is not None and findings.trim.recipe:
        recipe = f"statetrim recipe {arguments['cut']} > recipe.yaml"
        yield Command([recipe, "statetrim trim --recipe recipe.yaml -o SMALL"])
    else:
        uneven = " --uneven" if "=" in plan.to else ""
        plan_file = shell_quoted(findings.sources["plan"])
        yield Command([f"statetrim prune {arguments['model']} {plan_file}{uneven} -o SMALL"])
        for source in data_sources(findings.refit.statistics if findings.refit else {}):
            yield Text(
                f"Then it was refitted to {source.tokens:,} tokens of "
                f"{source.text or source.generated}, from token {source.skip:,} on, in sequences "
                f"of {source.length:,}."
            )
    yield _lineage_table(findings)


def _lineage_table(findings: Findings) -> Table:
    rows = []
    for name, file in findings.sources.items():
        artifact = getattr(findings, name, None)
        if isinstance(artifact, StepRecord):
            version, digest = artifact.statetrim, getattr(artifact, "student", artifact.source)
        elif artifact is not None:
            lineage = artifact.lineage
            version, digest = lineage.get("statetrim"), lineage.get("source")
        else:
            continue
        rows.append((name, file, truncated_text(version), truncated_text(digest)))
    for label, checkpoint in (("original", findings.original), ("cut", findings.cut)):
        if checkpoint is not None and checkpoint.shards:
            rows.append((label, str(checkpoint.path), "", truncated_text(checkpoint.digest)))
    return Table(("artifact", "file", "statetrim", "model digest"), rows)
