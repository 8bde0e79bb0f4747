"""Why the state has this shape, what the plan cuts, and how to make an equal cut again."""

from collections.abc import Iterator

from ...artifacts.plan import PLAN_FILE
from ...artifacts.steps import StepRecord, data_sources
from ...judging.decision_table import CAPTION, HEADER, decision_rows, needs_text
from ...judging.recommendation import recommend
from ...serving.capacity.compare import capacity_text, known_capacities
from ...serving.shapes import common_shapes
from ...storage.quantized.find import describe_schemes
from ..document import Block, Command, Table, Text, as_sentence
from ..findings import Findings, command_arguments, missing, shell_quoted, truncated_text

MAX_LISTED_WEIGHTS = 64


def plan(findings: Findings) -> Iterator[Block]:
    """How the cut's weights are stored, what was quantised again, and the plan's settings."""
    cut = findings.cut
    if cut.quantized:
        yield Text(
            f"Quantised weights of the cut: {describe_schemes(cut.quantized)}. Those that it did "
            f"not have to change are the original's, code by code."
        )
        errors = findings.prune.requantized if findings.prune else {}
        if errors:
            worst = sorted(errors.items(), key=lambda item: -item[1])[:MAX_LISTED_WEIGHTS]
            rows = [(name, f"{100 * error:.3g} %") for name, error in worst]
            caption = (
                f"{len(errors)} weights were quantised again for the cut; relative errors, the "
                f"largest first"
            )
            yield Table(("weight", "error"), rows, caption, folded=True)
    caption = f"The kept heads and channels are in {PLAN_FILE}"
    yield Table(("", "the plan"), findings.plan.table().rows, caption)


_SUGGESTED_SHAPES = 3


def shape(findings: Findings) -> Iterator[Block]:
    """The reason, and a table of all shapes."""
    decision, original = findings.decision, findings.original
    if decision is None:
        shapes = "96x96,64x64,48x48"
        if original is not None:
            shapes = ",".join(map(str, common_shapes(original.geometry)[:_SUGGESTED_SHAPES]))
        yield missing(
            findings,
            "Only one shape was measured. Several are calibrated once, and compared.",
            f"statetrim trim {{model}} --to {shapes} --text {{text}} --tokens {{tokens}} "
            "-o SMALLER",
        )
        return
    advice = recommend(decision.points, findings.compared_scores)
    yield Text(as_sentence(decision.sentence or advice.reason))
    if decision.expected:
        yield Text(as_sentence(decision.expected))
    if advice.cuts:
        serving, caption = findings.counted_in, CAPTION
        if without_cut := known_capacities(original, None, serving):
            caption += f". Without a cut, {capacity_text(without_cut, serving, with_cut=False)}"
        yield Table(HEADER, decision_rows(decision, findings.compared_scores), caption)
        if needs := needs_text(decision):
            yield Text(as_sentence(needs))


def reproduce(findings: Findings) -> Iterator[Block]:
    """The recipe, or plan and texts of a refit; then a table of files, versions and digests."""
    chosen, arguments = findings.plan, command_arguments(findings)
    digest = truncated_text(chosen.lineage.get("source"))
    yield Text(
        f"The original checkpoint has the digest {digest}. The same model, text and options give "
        f"the same bytes."
    )
    if findings.trim is not None and findings.trim.recipe:
        recipe = f"statetrim recipe {arguments['cut']} > recipe.yaml"
        yield Command([recipe, "statetrim trim --recipe recipe.yaml -o SMALL"])
    else:
        uneven = " --uneven" if "=" in chosen.to else ""
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
