"""What serving it takes, and where it can be served."""

from collections.abc import Iterator

from ...artifacts.timings import Timing, Timings
from ...maths.formatting import quantity
from ...maths.units import is_number
from ...serving.engines import Compatibility, Shape, serve_command, verdicts
from ..document import Block, Command, Table, Text
from ..findings import Findings
from .wording import missing

MEANING = {
    "fast": "usual kernels",
    "fallback": "serves, on a slower path",
    "unknown": "not known",
    "refused": "refused",
    "wrong": "serves, and answers wrongly",
}


def speed(found: Findings) -> Iterator[Block]:
    """Medians of each figure by model, with the ratio to the original."""
    timings = found.timings
    if timings is None:
        yield from missing(
            "Speed was not measured. Smaller heads save memory traffic; whether they save time "
            "depends on the kernels, so measure where you serve.",
            "statetrim benchmark SMALL --baseline MODEL -o timings.json",
        )
        return
    device, clock = (timings.lineage.get(name) for name in ("device", "clock"))
    yield Text(
        f"Measured on {device or 'a machine the timings do not name'}"
        f"{f', {clock}' if clock else ''}; other machines and kernels differ."
    )
    rows = dict.fromkeys((r.metric, r.batch, r.length) for r in timings.records)
    yield Table(
        ("figure", "batch", "length", *timings.models),
        [
            (
                f"{metric}, {_unit(timings, metric)}",
                "" if batch is None else str(batch),
                "" if length is None else str(length),
                *(_cell(timings, model, (metric, batch, length)) for model in timings.models),
            )
            for metric, batch, length in rows
        ],
        caption=f"Medians; in brackets the ratio to {timings.baseline}, taken round by round",
    )


def _unit(timings: Timings, metric: str) -> str:
    return next(record.unit for record in timings.records if record.metric == metric)


def _cell(timings: Timings, model: str, which: tuple[str, int | None, int | None]) -> str:
    record: Timing | None = next(
        (r for r in timings.records if r.model == model and (r.metric, r.batch, r.length) == which),
        None,
    )
    if record is None or not is_number(record.value):
        return ""
    value = quantity(record.value)
    ratio = record.ratio if is_number(record.ratio) else None
    return value if ratio is None else f"{value} ({ratio:.2f}x)"


def engines(found: Findings) -> Iterator[Block]:
    """What is known of engines for this shape, and how they are started."""
    model, shape = found.after or found.before, found.geometry_after or found.geometry_before
    if model is None or shape is None:
        yield Text(
            "Which engines serve it depends on the model type and the shape: give the checkpoint.",
            "missing",
        )
        return
    lines = [
        line
        for line in verdicts(str(model.config.get("model_type")), Shape.of(shape))
        if line.current
    ]
    if not lines:
        yield Text("No engine is known to serve or refuse this model type.")
        return
    yield Text(
        f"A head's state is {Shape.of(shape)} (keys x values). How it is known: run, a model "
        f"generated; kernel, one kernel ran; compiled, ahead of time only; source, read in the "
        f"code; report, somebody's public report."
    )
    alike: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        name = f"{line.engine} {line.versions}"
        same = (name, MEANING[line.verdict], line.evidence, _remark(line))
        alike.setdefault(same, []).append(line.hardware)
    yield Table(
        ("engine", "on", "verdict", "known by", "remark"),
        [(same[0], ", ".join(hardware), *same[1:]) for same, hardware in alike.items()],
    )
    served = {line.engine: line for line in reversed(lines) if line.serves}
    if served:
        yield Command([serve_command(line, "SMALL") for line in reversed(served.values())])


def _remark(line: Compatibility) -> str:
    return line.error or (f"add {line.flag}" if line.flag else line.note)
