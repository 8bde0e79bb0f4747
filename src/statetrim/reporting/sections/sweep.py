"""Every shape of a sweep: what it costs, how it stands to the limits, and its plan."""

from collections.abc import Iterator

from ...artifacts.recommendation import JudgedCut, Recommendation, recommend
from ...artifacts.sweep import Sweep
from ...artifacts.verdict import metric_label
from ...maths.formatting import bytes_text, relative_change_text
from ...maths.units import is_number
from ...serving.engines import Shape, verdicts
from ..document import Block, Command, Missing, Picture, Table, Text, sentence
from ..findings import Findings
from ..names import names, quoted, trim_command
from ..sweep_pictures import CAPTION, axes_cut, bounds, pictures

TITLE = "Quality against state size"


def blocks(found: Findings) -> Iterator[Block]:
    """The shapes and the one to take, a picture for the main metric of each task, all numbers."""
    sweep = found.sweep
    if sweep is None:
        words = names(found)
        yield Missing(
            "Only one shape was measured. A sweep calibrates once and shows what shapes cost.",
            [
                f"statetrim trim {words.model} --sweep 0.75,0.5,0.25 --text {words.text} "
                f"--tokens {words.tokens} -o SWEEP"
            ],
        )
        return
    yield from _shapes(found, sweep, recommend(sweep))
    drawn = pictures(sweep)
    for name, drawing in drawn.items():
        yield Picture(drawing, f"{name} by the size of the state.")
    if drawn:
        yield Text(CAPTION)
    yield Table(
        ("keys x values", "cut", "state", "metric", "value", "95% interval"),
        list(_numbers(sweep)),
        caption="All shapes and metrics in numbers; the accuracy of a task with settings is the "
        "mean of those on which the original is above chance, the same for every shape",
        folded=True,
    )


def _shapes(found: Findings, sweep: Sweep, advice: Recommendation) -> Iterator[Block]:
    if not advice.cuts:
        return
    original = next(point for point in sweep.points if point.method == "none")
    chosen = advice.chosen
    yield Text(
        f"Recommended: {chosen.shape}, {advice.reason}." if chosen else sentence(advice.reason)
    )
    half = bytes_text(original.state_bytes / 2)
    yield Text(
        f"Without a cut, a bfloat16 state takes {half} per sequence; each of these shapes takes "
        f"half of what is listed in bfloat16."
    )
    header = ["keys x values", "state", "change", "on the frontier", "worst task", "verdict"]
    known = found.before is not None
    yield Table(
        [*header, *(["served by"] if known else []), "plan"],
        [
            (
                f"{cut.point.keep} x {cut.point.keep_values}",
                bytes_text(int(cut.point.state_bytes)),
                relative_change_text(original.state_bytes, cut.point.state_bytes),
                "yes" if cut.on_frontier else "",
                f"{metric_label(cut.worst)}: {cut.worst.sentence}" if cut.worst else "",
                "recommended" if cut is chosen else str(cut.limit_status),
                *([_served(found, cut)] if known else []),
                found.sweep_plans.get(cut.shape, ""),
            )
            for cut in advice.cuts
        ],
        caption="On the frontier: no other shape is as small and loses as little",
    )
    if chosen:
        lines = [trim_command(found, chosen.point.keep, chosen.point.keep_values)]
        if chosen.shape in found.sweep_plans:
            plan = quoted(found.sweep_plans[chosen.shape])
            lines.append(f"statetrim prune {names(found).model} {plan} -o SMALL")
        yield Text("To cut and measure it with a random cut for comparison, or only to cut it:")
        yield Command(lines)


def _served(found: Findings, cut: JudgedCut) -> str:
    """The engines that take the shape; the model's type decides."""
    assert found.before is not None
    try:
        shape = Shape(int(cut.point.keep), int(cut.point.keep_values))
    except (TypeError, ValueError):
        return ""
    lines = verdicts(str(found.before.config.get("model_type")), shape)
    return ", ".join(dict.fromkeys(x.engine for x in lines if x.current and x.serves))


def _numbers(sweep: Sweep) -> Iterator[tuple[str, ...]]:
    for tried in sweep.points:
        if not is_number(tried.state_bytes):
            continue
        for name, measured in tried.scores.items():
            if not is_number(measured.value):
                continue
            low, high = bounds(measured)
            yield (
                f"{tried.keep} x {tried.keep_values}",
                axes_cut(sweep, tried),
                bytes_text(int(tried.state_bytes)),
                name,
                f"{measured.value:.4g}",
                "" if low is None or high is None else f"{low:.4g} to {high:.4g}",
            )
