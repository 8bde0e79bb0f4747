"""What was measured of a model: speed, stored copies, layers cut one by one, and rank."""

from collections.abc import Iterator, Mapping

from ...artifacts.analysis import Analysis
from ...artifacts.memory import Memory
from ...maths.formatting import Table as NamedRows
from ...maths.formatting import evenly_spaced, percent_text
from ..charts import MAX_CURVE_POINTS, ORIGINAL, Point, Series, line_chart
from ..document import Block, Picture, Table, Text
from ..findings import Findings, command_arguments, missing


def speed(findings: Findings) -> Iterator[Block]:
    """Medians by metric and model, with the ratio to the original."""
    timings = findings.timings
    if timings is None:
        yield missing(
            findings,
            "Speed was not measured. Smaller heads save memory traffic; whether they save time "
            "depends on the kernels, so measure where you serve.",
            "statetrim benchmark {cut} --baseline {model} -o timings.json",
        )
        return
    device, clock = timings.lineage.get("device"), timings.lineage.get("clock")
    yield Text(
        f"Measured on {device or 'a machine the timings do not name'}"
        f"{f', {clock}' if clock else ''}; other machines and kernels differ."
    )
    table = timings.table()
    yield Table(
        ("figure", *table.header[1:]),
        table.rows,
        caption=f"Medians; in brackets the ratio to that of {timings.baseline}. Within noise: the "
        f"rounds do not agree on which model is faster",
    )


def copies(findings: Findings) -> Iterator[Block]:
    """A row per code; without a measurement, a `Missing` with the command for it."""
    snapshots = findings.snapshots
    if snapshots is None:
        yield missing(
            findings,
            "Stored copies of states (prefix caches, saved prompts) were not measured.",
            "statetrim snapshot {model} --text {text} -o snapshots.json",
        )
        return
    lengths = [f"{100 * share:.1f} % after {n} tokens" for n, share in snapshots.lengths.items()]
    yield Text(
        f"Codes named “within” bound the relative error of every head. "
        f"Within {snapshots.tolerance:g}: {', '.join(lengths)}."
    )
    table = snapshots.table()
    yield Table(table.header, table.rows, caption="A copy of one sequence's states, in KiB")


def layers(findings: Findings) -> Iterator[Block]:
    """Each layer cut alone: which carry recall, and a table of every layer and width."""
    sensitivity = findings.sensitivity
    if sensitivity is None:
        yield missing(
            findings,
            "Layers were not cut one by one, so it is not known which one carries recall.",
            "statetrim analyze {model} --sensitivity --text {text} -o sensitivity.json",
        )
        return
    yield Text(sensitivity.sentence)
    yield _changes(sensitivity.table())


def memory(findings: Findings) -> Iterator[Block]:
    """Layers that forget: a picture, and a table of everything that was made to forget."""
    memory = findings.memory
    if memory is None:
        yield missing(
            findings,
            "Layers were not made to forget, so it is not known which ones carry memory.",
            "statetrim analyze {model} --memory --text {text} -o memory.json",
        )
        return
    yield Text(memory.sentence)
    yield memory_picture(memory)
    yield _changes(memory.table())


def _changes(table: NamedRows) -> Table:
    caption = "Change of NLL in nats per token and of recall in points, with 95 % intervals"
    return Table(table.header, table.rows, caption, folded=True)


def ranks(findings: Findings) -> Iterator[Block]:
    """Mean rank in use, its picture, and a table by layer."""
    analysis = findings.analysis
    if analysis is None:
        tokens = min(command_arguments(findings)["tokens"], 2**14)
        yield missing(
            findings,
            "The rank of the state was not measured.",
            f"statetrim analyze {{cut}} --baseline {{model}} --text {{text}} --tokens {tokens} "
            "--length 512 -o analysis.json",
        )
        return
    analyses = {"the original" if findings.analyzes_original else "this model": analysis}
    if analysis.baseline:
        analyses = {"before": analysis.baseline, "after": analysis}
    shares = []
    for name, shown in analyses.items():
        mean = float(shown.mean_utilization.nanmean())
        shares.append(f"{name} {100 * mean:.1f}% of {shown.max_rank}")
    yield Text(
        f"A state of d keys could have rank d; its effective rank says how many directions it "
        f"really uses. Mean use: {', '.join(shares)}. A narrower state reaches a higher share with "
        f"less in it."
    )
    yield utilization_picture(analyses)
    table = analysis.table()
    caption = "Rank in use by layer, with a bar per head; κ is the condition number, median head"
    yield Table(table.header, table.rows, caption, folded=True)


def utilization_picture(analyses: Mapping[str, Analysis]) -> Picture:
    """Rank in use by token position; a line per analysis, of several first the original's."""
    series = list[Series]()
    for label, analysis in analyses.items():
        positions, shares = analysis.positions.tolist(), analysis.utilization_by_position.tolist()
        points = [Point(x, y) for x, y in zip(positions, shares, strict=True)]
        name = f"{label} (largest rank {analysis.max_rank})"
        style = ORIGINAL if len(analyses) > 1 and not series else ""
        series.append(Series(name, evenly_spaced(points, MAX_CURVE_POINTS), style))
    title = "Share of the largest rank in use, by token"
    chart = line_chart(
        series, title, x="token", y="rank in use", format_y=percent_text, from_zero=True
    )
    return Picture(
        chart,
        f"{title}. How to read it: effective rank of the state, as a share of the largest rank it "
        "could have, after each token; mean over layers, heads and sequences. Lines with the same "
        "largest rank compare directly; a narrower state reaches a higher share with less in it. "
        "The rise at the left is forced: a state has no higher rank than tokens seen.",
    )


def memory_picture(memory: Memory) -> Picture:
    """The loss by tokens read, of the model as it is and with its states emptied."""
    lines = {"as it is": memory.original}
    lines |= {f"emptied every {x.every:,}": x.samples for x in memory.horizons}
    series = list[Series]()
    for name, samples in lines.items():
        values = zip(memory.positions, samples.nll_by_position, strict=False)
        points = [Point(position, value) for position, value in values]
        series.append(Series(name, points, "" if series else ORIGINAL))
    return Picture(
        line_chart(series, "NLL by position", x="tokens read", y="nats", log_x=True),
        "NLL by position. How to read it: all states are emptied at intervals (1: after every "
        "token); where that costs nothing, older tokens do not matter to them.",
    )
