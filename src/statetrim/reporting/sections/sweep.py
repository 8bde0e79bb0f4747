"""Every shape of a sweep: its state size, its losses against the limits, and its plan."""

from collections.abc import Iterator

from ...artifacts.sweep import Sweep
from ...judging.recommendation import JudgedCut, Recommendation, recommend
from ...judging.verdict import metric_label
from ...maths.formatting import bytes_text, relative_change_text
from ...maths.units import is_number
from ...serving.engines import Shape, compatibility_of_shape
from ...storage.checkpoint import Checkpoint
from ..commands import command_arguments, shell_quoted, trim_command
from ..document import Block, Command, Missing, Picture, Table, Text, as_sentence
from ..findings import Findings
from ..sweep_pictures import CAPTION, interval_bounds, method_and_axes, pictures

TITLE = "Quality against state size"


def blocks(findings: Findings) -> Iterator[Block]:
    """The recommendation, a picture per main metric, and all scores."""
    sweep = findings.sweep
    if sweep is None:
        arguments = command_arguments(findings)
        yield Missing(
            "Only one shape was measured. A sweep calibrates once and shows what shapes cost.",
            [
                f"statetrim trim {arguments.model} --sweep 0.75,0.5,0.25 --text {arguments.text} "
                f"--tokens {arguments.tokens} -o SWEEP"
            ],
        )
        return
    yield from _recommendation_blocks(findings, sweep, recommend(sweep))
    drawings = pictures(sweep)
    for name, drawing in drawings.items():
        yield Picture(drawing, f"{name} by the size of the state.")
    if drawings:
        yield Text(CAPTION)
    yield Table(
        ("keys x values", "cut", "state", "metric", "value", "95% interval"),
        list(_score_rows(sweep)),
        caption="All shapes and metrics in numbers; the accuracy of a task with settings is the "
        "mean of those on which the original is above chance, the same for every shape",
        folded=True,
    )


def _recommendation_blocks(
    findings: Findings, sweep: Sweep, advice: Recommendation
) -> Iterator[Block]:
    """The recommended shape or why there is none, a table of all shapes, and the commands that
    make the recommended one; nothing if no shape could be judged."""
    if not advice.cuts:
        return
    original = next(point for point in sweep.points if point.method == "none")
    chosen = advice.chosen
    yield Text(
        f"Recommended: {chosen.shape}, {advice.reason}." if chosen else as_sentence(advice.reason)
    )
    bfloat16_size = bytes_text(original.state_bytes / 2)
    yield Text(
        f"Without a cut, a bfloat16 state takes {bfloat16_size} per sequence; each of these shapes "
        f"takes half of what is listed in bfloat16."
    )
    header = ["keys x values", "state", "change", "on the frontier", "worst task", "verdict"]
    if findings.original is not None:
        header.append("served by")
    rows = []
    for cut in advice.cuts:
        cells = [
            f"{cut.point.keep} x {cut.point.keep_values}",
            bytes_text(int(cut.point.state_bytes)),
            relative_change_text(original.state_bytes, cut.point.state_bytes),
            "yes" if cut.on_frontier else "",
            f"{metric_label(cut.worst)}: {cut.worst.sentence}" if cut.worst else "",
            "recommended" if cut is chosen else str(cut.limit_status),
        ]
        if findings.original is not None:
            cells.append(_serving_engines(findings.original, cut))
        rows.append([*cells, findings.sweep_plans.get(cut.shape, "")])
    caption = "On the frontier: no other shape is as small and loses as little"
    yield Table([*header, "plan"], rows, caption)
    if chosen:
        lines = [trim_command(findings, chosen.point.keep, chosen.point.keep_values)]
        if chosen.shape in findings.sweep_plans:
            plan = shell_quoted(findings.sweep_plans[chosen.shape])
            lines.append(f"statetrim prune {command_arguments(findings).model} {plan} -o SMALL")
        yield Text("To cut and measure it with a random cut for comparison, or only to cut it:")
        yield Command(lines)


def _serving_engines(original: Checkpoint, cut: JudgedCut) -> str:
    """Engines whose current versions serve the original's model type in the cut's shape."""
    try:
        shape = Shape(int(cut.point.keep), int(cut.point.keep_values))
    except (TypeError, ValueError):
        return ""
    rows = compatibility_of_shape(str(original.config.get("model_type")), shape)
    return ", ".join(dict.fromkeys(row.engine for row in rows if row.current and row.serves))


def _score_rows(sweep: Sweep) -> Iterator[tuple[str, ...]]:
    """A row per shape and metric; what is no number in an untrusted sweep is left out."""
    for point in sweep.points:
        if not is_number(point.state_bytes):
            continue
        for name, measured in point.scores.items():
            if not is_number(measured.value):
                continue
            low, high = interval_bounds(measured)
            yield (
                f"{point.keep} x {point.keep_values}",
                method_and_axes(sweep, point),
                bytes_text(int(point.state_bytes)),
                name,
                f"{measured.value:.4g}",
                "" if low is None or high is None else f"{low:.4g} to {high:.4g}",
            )
