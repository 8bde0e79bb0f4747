"""statetrim inspect"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...maths.formatting import bytes_text, relative_change_text
from ...serving.options import InspectOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

if TYPE_CHECKING:
    from ...serving.capacity.arithmetic import Fit
    from ...serving.deployment import Deployment
    from ...serving.inspect import ServedShape, StateReport
    from ...serving.state_size import StateSize


@command(InspectOptions)
def inspect(
    model: Model, options: InspectOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    from ...serving.inspect import inspect as run

    report = run.run(arguments.open_model(model, family, weights=False), options)
    if as_json:
        terminal.print_json(report.as_json())
        return
    header = ["", "now"]
    if report.after:
        header += [_kept_text(report.before, report.after), "change"]
    terminal.print_table(f"{report.model_type}: recurrent state", header, _state_rows(report))
    for warning in report.warnings:
        terminal.warn(f"note: {warning}")
    if report.after is not None:
        _show_engines(report.deployment)
    elif report.shapes:
        _show_shapes(report.shapes)
    if report.deployment.capacity:
        _show_capacity(report.deployment)
    if report.deployment.try_first:
        _show_try_first(report.deployment)


def _kept_text(before: StateSize, after: StateSize) -> str:
    """What the cut keeps, as a column title: "keep 8 heads", "keep 64" or "keep 64 x 64"."""
    if after.num_v_heads != before.num_v_heads:
        return f"keep {after.num_v_heads} heads"
    value_text = f" x {after.head_v_dim}" if after.head_v_dim != before.head_v_dim else ""
    return f"keep {after.head_k_dim}{value_text}"


def _state_rows(report: StateReport) -> Iterator[list[str]]:
    """Rows of a name, the value before and, if there is a cut, the value after it and, of what the
    cut may change, the change."""
    sizes = [report.before, report.after] if report.after else [report.before]

    def row(name: str, texts: Sequence[str], numbers: Sequence[int] = ()) -> list[str]:
        change = [relative_change_text(*numbers)] if len(numbers) == 2 else []
        return [name, *texts, *change]

    total_text = f" of {report.total_layers}" if report.total_layers else ""
    yield row("linear-attention layers", [f"{report.layers}{total_text}"] * len(sizes))
    value_heads = [size.num_v_heads for size in sizes]
    removes_heads = len(set(value_heads)) > 1
    yield row(
        "key heads / value heads",
        [f"{size.num_k_heads} / {size.num_v_heads}" for size in sizes],
        value_heads if removes_heads else [],
    )
    if removes_heads:
        devices = [", ".join(map(str, size.tensor_parallel)) for size in sizes]
        yield row("devices that can share them", devices, [size.num_k_heads for size in sizes])
    yield row(
        "state per head, keys x values",
        [size.shape for size in sizes],
        [size.head_k_dim * size.head_v_dim for size in sizes],
    )
    states, convolutions = [s.state_bytes for s in sizes], [s.conv_bytes for s in sizes]
    yield row("recurrent state per sequence, float32", [*map(bytes_text, states)], states)
    halves = [bytes_text(nbytes / 2) for nbytes in states]
    yield row("the same in bfloat16 (an engine option)", halves, states)
    name = f"convolution state per sequence, {report.conv_dtype}"
    yield row(name, [*map(bytes_text, convolutions)], convolutions)
    if report.quantized:
        yield row("quantised weights", [report.quantized] * len(sizes))
    if report.parameters:
        counts = [report.parameters, report.parameters_after][: len(sizes)]
        yield row("parameters", [f"{count:,}" for count in counts], counts)
    else:
        yield row("parameters", ["no weights here"] * len(sizes))


def _show_engines(deployment: Deployment) -> None:
    from ...serving.deployment import engine_rows
    from ...serving.engine_names import command_with_comment

    rows = []
    for engine, hardware, verdict, evidence, remark in engine_rows(deployment.engines):
        verdict_text = f"{verdict} ({evidence})" if evidence else verdict
        rows.append((engine, hardware, verdict_text, remark))
    if not rows:
        terminal.print_text(
            f"no engine is known to serve or refuse {deployment.shape} for this model type"
        )
        return
    header = ("engine", "on", "verdict", "to know")
    title = f"Engines and a state of {deployment.shape}"
    terminal.print_table(title, header, rows, left=range(4))
    for engine, serving in deployment.commands.items():
        terminal.print_command(command_with_comment(engine, serving))
    if deployment.everywhere and deployment.everywhere != deployment.shape:
        terminal.print_text(f"nearest shape every engine serves: --to {deployment.everywhere}")


def _show_shapes(shapes: list[ServedShape]) -> None:
    """Print a row per engine and a column per shape; seven shapes fit into 80 columns."""
    rows = []
    for engine in shapes[0].engines:
        answers = [served_shape.engines[engine] for served_shape in shapes]
        rows.append([engine, *("?" if answer == "unknown" else answer for answer in answers)])
    columns = [f"{served_shape.shape}\n{served_shape.share:.0%}" for served_shape in shapes]
    title = "Which engines serve which shape, keys x values"
    terminal.print_table(title, ["engine", *columns], rows)
    terminal.print_text(
        "flag: some hardware needs a flag; ?: not known. Commands and reasons for one shape: "
        "add --to KEYSxVALUES"
    )


def _show_capacity(deployment: Deployment) -> None:
    served, rows = deployment.served_original, []
    for row in deployment.capacity:
        fit = row.fit
        rows.append(
            (
                f"{row.shape} {row.state_dtype}{' (default)' if row.is_default else ''}",
                f"{fit.states:g} x {bytes_text(fit.state_bytes)}",
                sequences_text(fit.sequences),
                _gain_text(fit, served) if fit is not served else "",
                bytes_text(fit.stored_bytes),
                f"{bytes_text(fit.transfer_bytes)}, {row.transfer_seconds * 1000:.0f} ms",
            )
        )
    terminal.print_table(
        f"Sequences of {deployment.context:,} tokens in {deployment.memory_gib:g} GiB, "
        f"by {deployment.engine}",
        ("state", "per request", "sequences", "gain", "stored state", "to decode"),
        rows,
    )
    text = f"keys and values: {served.token_bytes / 2**10:,.1f} KiB per token"
    if served.host_bytes:
        text += f"; checkpoints in host memory: {bytes_text(served.host_bytes)} a slot"
    terminal.print_text(f"{text}; docs/capacity.md explains the columns")


def _show_try_first(deployment: Deployment) -> None:
    served, rows = deployment.served_original, []
    for gain in deployment.try_first:
        fits = [gain.fit, gain.cut_fit] if gain.cut_fit else [gain.fit]
        cells = [f"{sequences_text(fit.sequences)} ({_gain_text(fit, served)})" for fit in fits]
        rows.append((gain.flag, *cells, gain.cost))
    with_cut = ("with the cut",) if deployment.try_first[0].cut_fit else ()
    header = ("flag", "sequences", *with_cut, "cost")
    terminal.print_table("Try these first", header, rows, left=(0, len(header) - 1))


def sequences_text(sequences: float) -> str:
    return f"{sequences:,.1f}" if sequences % 1 else f"{sequences:,.0f}"


def _gain_text(fit: Fit, served: Fit) -> str:
    return f"{fit.sequences / served.sequences:.2f}x" if served.sequences else "from none"
