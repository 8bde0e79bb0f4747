"""statetrim inspect"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...maths.formatting import bytes_text, relative_change_text
from ...serving.options import InspectOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

if TYPE_CHECKING:
    from rich.table import Table

    from ...serving.capacity.arithmetic import Fit
    from ...serving.deployment import Deployment
    from ...serving.engines import Compatibility
    from ...serving.inspect import ServedShape, StateReport
    from ...serving.state_size import StateSize


@command(InspectOptions)
def inspect(
    model: Model, options: InspectOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    from ...serving.inspect import inspect as run

    opened = arguments.open_model(model, family, weights=False)
    show_report(run.run(opened, options), as_json=as_json)


def show_report(report: StateReport, *, as_json: bool) -> None:
    """Print tables of the state, of the engines that serve it, and of the sequences that fit."""
    if as_json:
        terminal.print_json(report.as_json())
        return
    _show_state(report)
    if report.after is not None:
        _show_engines(report.deployment)
    elif report.shapes:
        _show_shapes(report.shapes)
    if report.deployment.capacity:
        _show_capacity(report.deployment)


def _show_state(report: StateReport) -> None:
    from rich.table import Table

    total_text = f" of {report.total_layers}" if report.total_layers else ""
    table = Table(title=f"{report.model_type}: recurrent state", title_justify="left")
    table.add_column("")
    table.add_column("now", justify="right")
    if report.after:
        table.add_column(_kept_text(report.before, report.after), justify="right")
        table.add_column("change", justify="right")
    _add_row(table, "linear-attention layers", f"{report.layers}{total_text}")
    if report.after and report.after.num_v_heads != report.num_v_heads:
        _add_comparison(
            table,
            "key heads / value heads",
            report,
            lambda s: f"{s.num_k_heads} / {s.num_v_heads}",
            "num_v_heads",
        )
        _add_comparison(
            table,
            "devices that can share them",
            report,
            lambda s: ", ".join(map(str, s.tensor_parallel)),
            "num_k_heads",
        )
    else:
        _add_row(table, "key heads / value heads", f"{report.num_k_heads} / {report.num_v_heads}")
    _add_comparison(table, "state per head, keys x values", report, lambda s: s.shape)
    _add_comparison(
        table,
        "recurrent state per sequence, float32",
        report,
        lambda s: bytes_text(s.state_bytes),
        "state_bytes",
    )
    _add_comparison(
        table,
        "the same in bfloat16 (an engine option)",
        report,
        lambda s: bytes_text(s.state_bytes / 2),
        "state_bytes",
    )
    _add_comparison(
        table,
        f"convolution state per sequence, {report.conv_dtype}",
        report,
        lambda s: bytes_text(s.conv_bytes),
        "conv_bytes",
    )
    if report.quantized:
        _add_row(table, "quantised weights", report.quantized)
    if report.parameters:
        cells = [f"{report.parameters:,}"]
        if report.after:
            cells += [
                f"{report.parameters_after:,}",
                relative_change_text(report.parameters, report.parameters_after),
            ]
        table.add_row("parameters", *cells)
    else:
        _add_row(table, "parameters", "no weights here")
    terminal.print_table(table)
    for warning in report.warnings:
        terminal.warn(f"note: {warning}")


def _kept_text(before: StateSize, after: StateSize) -> str:
    """What the cut keeps, as a column title: "keep 8 heads", "keep 64" or "keep 64 x 64"."""
    if after.num_v_heads != before.num_v_heads:
        return f"keep {after.num_v_heads} heads"
    value_text = f" x {after.head_v_dim}" if after.head_v_dim != before.head_v_dim else ""
    return f"keep {after.head_k_dim}{value_text}"


def _add_row(table: Table, name: str, value: str) -> None:
    """Add a row whose value a cut does not change."""
    cells = [value, value] if len(table.columns) > 2 else [value]
    table.add_row(name, *cells)


def _add_comparison(
    table: Table, name: str, report: StateReport, to_text: Any, field: str = ""
) -> None:
    """Add a row with the value before and, if there is a cut, after it, and the change of `field`
    (of a head's state, if no field is named)."""
    cells = [to_text(report.before)]
    if report.after:
        old, new = _state_number(report.before, field), _state_number(report.after, field)
        cells += [to_text(report.after), relative_change_text(old, new)]
    table.add_row(name, *cells)


def _state_number(state: StateSize, field: str) -> int:
    """The value of a field, or without one the elements of one head's state."""
    return int(getattr(state, field)) if field else state.head_k_dim * state.head_v_dim


def _show_engines(deployment: Deployment) -> None:
    from rich.table import Table

    from ...serving.deployment import relevant_lines
    from ...serving.engine_names import command_with_comment

    lines = relevant_lines(deployment.engines)
    if not lines:
        terminal.print_text(
            f"no engine is known to serve or refuse {deployment.shape} for this model type"
        )
        return
    table = Table(title=f"Engines and a state of {deployment.shape}", title_justify="left")
    for name in ("engine", "on", "verdict", "to know"):
        table.add_column(name)
    for line, hardware in _merge_hardware(lines):
        remark = line.error or (_flag_text(line) if line.flag else line.note)
        table.add_row(
            f"{line.engine} {line.versions}",
            ", ".join(hardware),
            f"{line.verdict} ({line.evidence})" if line.evidence else line.verdict,
            remark,
        )
    terminal.print_table(table)
    for engine, serving in deployment.commands.items():
        terminal.print_command(command_with_comment(engine, serving))
    if deployment.everywhere and deployment.everywhere != deployment.shape:
        terminal.print_text(f"nearest shape every engine serves: --to {deployment.everywhere}")


def _show_shapes(shapes: list[ServedShape]) -> None:
    """Print a row per engine and a column per shape; seven shapes fit into 80 columns."""
    from rich.table import Table

    table = Table(title="Which engines serve which shape, keys x values", title_justify="left")
    table.add_column("engine")
    for served_shape in shapes:
        table.add_column(f"{served_shape.shape}\n{served_shape.share:.0%}", justify="right")
    for engine in shapes[0].engines:
        cells = [engine]
        for served_shape in shapes:
            answer = served_shape.engines[engine]
            cells.append("?" if answer == "unknown" else answer)
        table.add_row(*cells)
    terminal.print_table(table)
    terminal.print_text(
        "flag: some hardware needs a flag; ?: not known. Commands and reasons for one shape: "
        "add --to KEYSxVALUES"
    )


def _flag_text(line: Compatibility) -> str:
    """A hint at the flag; the flag itself is in the command below, since a cell may wrap it."""
    return "needs the flag in its command below" if line.serves else f"add {line.flag}"


def _merge_hardware(lines: list[Compatibility]) -> list[tuple[Compatibility, list[str]]]:
    """Group lines that differ only in hardware: the first line, and the hardware of all."""
    merged: dict[tuple[str, ...], tuple[Compatibility, list[str]]] = {}
    for line in lines:
        key = (line.engine, line.versions, line.verdict, line.evidence, line.flag, line.error)
        merged.setdefault(key, (line, []))[1].append(line.hardware)
    return list(merged.values())


def _show_capacity(deployment: Deployment) -> None:
    from rich.table import Table

    engine, first = deployment.engine, deployment.capacity[0]
    table = Table(
        title=f"Sequences of {deployment.context:,} tokens in {deployment.memory_gib:g} GiB, "
        f"by {engine}",
        title_justify="left",
    )
    names = ("state", "per request", "sequences", "gain", "stored state", "to decode")
    for name in names:
        table.add_column(name, justify="left" if name == "state" else "right")
    for row in deployment.capacity:
        fit = row.fit
        table.add_row(
            f"{row.shape} {row.state_dtype}{' (default)' if row.is_default else ''}",
            f"{fit.states:g} x {bytes_text(fit.state_bytes)}",
            sequences_text(fit.sequences),
            _gain_text(fit, first.fit) if row is not first else "",
            bytes_text(fit.stored_bytes),
            f"{bytes_text(fit.transfer_bytes)}, {row.transfer_seconds * 1000:.0f} ms",
        )
    terminal.print_table(table)
    text = f"keys and values: {first.fit.token_bytes / 2**10:,.1f} KiB per token"
    if first.fit.host_bytes:
        text += f"; checkpoints in host memory: {bytes_text(first.fit.host_bytes)} a slot"
    terminal.print_text(f"{text}; docs/capacity.md explains the columns")
    if deployment.try_first:
        _show_try_first(deployment)


def _show_try_first(deployment: Deployment) -> None:
    """Print what each flag of the engine gives, alone and with the cut."""
    from rich.table import Table

    first = next((row for row in deployment.capacity if row.is_default), deployment.capacity[0])
    has_cut = deployment.try_first[0].cut_fit is not None
    table = Table(title="Try these first", title_justify="left")
    for name in ("flag", "sequences", "with the cut") if has_cut else ("flag", "sequences"):
        table.add_column(name, justify="left" if name == "flag" else "right")
    table.add_column("cost")
    for gain in deployment.try_first:
        cells = [_with_gain(gain.fit, first.fit)]
        if gain.cut_fit is not None:
            cells.append(_with_gain(gain.cut_fit, first.fit))
        table.add_row(gain.flag, *cells, gain.cost)
    terminal.print_table(table)


def sequences_text(sequences: float) -> str:
    return f"{sequences:,.1f}" if sequences % 1 else f"{sequences:,.0f}"


def _with_gain(fit: Fit, first: Fit) -> str:
    return f"{sequences_text(fit.sequences)} ({_gain_text(fit, first)})"


def _gain_text(fit: Fit, first: Fit) -> str:
    return f"{fit.sequences / first.sequences:.2f}x" if first.sequences else "from none"
