"""statetrim inspect"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ...maths.formatting import bytes_text, change_row, count_of, fit_text
from ...serving.options import InspectOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

if TYPE_CHECKING:
    from ...serving.capacity.arithmetic import Fit
    from ...serving.deployment import Deployment
    from ...serving.inspect import ServedShape, StateReport

MAX_FLAGS = 3  # in the short answer
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Every engine, its command, and all flags to try first."),
]


@command(InspectOptions)
def inspect(
    model: Model,
    options: InspectOptions,
    family: FamilyFile = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    from ...serving.capacity.compare import default_capacity
    from ...serving.inspect import inspect as run

    report = run.run(arguments.open_model(model, family, weights=False), options)
    if as_json:
        terminal.print_json(report.as_json())
        return
    of_total = f" of {report.total_layers}" if report.total_layers else ""
    quantized = f"; quantised weights: {report.quantized}" if report.quantized else ""
    terminal.print_text(
        f"{report.model_type}: {report.layers}{of_total} layers have a state; "
        f"{count_of(report.num_k_heads, 'key head')}, {count_of(report.num_v_heads, 'value head')}"
        f"{quantized}"
    )
    deployment = report.deployment
    if report.shapes and not verbose:
        _show_shapes(report, options)
    else:
        _show_sizes(report, options)
    for warning in report.warnings:
        terminal.warn(f"note: {warning}")
    if report.shapes and verbose:
        _show_matrix(report.shapes)
    elif verbose:
        _show_engines(deployment)
    elif not report.shapes:
        for text in deployment.served_by.texts:
            terminal.print_text(text)
    served = default_capacity(deployment.capacity, cut=False)
    if served is not None and verbose:
        _show_capacity(deployment, served.fit)
        _show_try_first(deployment, served.fit)
    elif served is not None:
        _show_best_flags(deployment, served.fit)
    if not verbose:
        terminal.print_text("commands, hardware, reasons and flags: add --verbose")


def _show_sizes(report: StateReport, options: InspectOptions) -> None:
    """Print the state and what fits, now and, if there is a cut, after it."""
    from ...serving.capacity.compare import capacity_rows, prefix_rows

    header = ["", "now"] if report.after is None else ["", "now", "after the cut", "change"]
    rows = list(_size_rows(report))
    for rows_of in (capacity_rows, prefix_rows):
        counted = rows_of(report.deployment.capacity, with_cut=report.after is not None)
        rows += [(*row, "") for row in counted]
    title = f"{report.model_type}; {options.counted}" if report.deployment.capacity else ""
    terminal.print_table(title, header, [row[: len(header)] for row in rows])


def _size_rows(report: StateReport) -> Iterator[tuple[str, ...]]:
    """Rows of a name, the value before, after a cut, and the change."""
    from ...artifacts.state_sizes import state_rows

    before, after = report.before, report.after or report.before
    yield from state_rows(report.geometry, report.geometry_after or report.geometry)
    yield change_row(f"convolution state, {report.conv_dtype}", before.conv_bytes, after.conv_bytes)
    if before.num_v_heads != after.num_v_heads:
        devices = [", ".join(map(str, size.tensor_parallel)) for size in (before, after)]
        yield ("tensor parallelism", *devices, "")
    if report.parameters:
        yield change_row("parameters", report.parameters, report.parameters_after, "")


def _show_shapes(report: StateReport, options: InspectOptions) -> None:
    """Print a row per shape: its state, what fits or its share, and the engines without it."""
    unknown = set.intersection(*(set(shape.without("unknown")) for shape in report.shapes))
    counted = any(shape.sequences is not None for shape in report.shapes)
    figures = ("fit", "prefix") if counted else ("of all",)
    rows, left_out = [], 0
    for shape in report.shapes:
        if counted and shape.sequences is None:
            left_out += 1
            continue
        texts = [f"{shape.share:.0%}"]
        if shape.sequences is not None:
            texts = [fit_text(shape.sequences), f"{shape.shortest_prefix or 0:,}"]
        engines = shape.without("no", "wrong")
        engines += [f"{name}?" for name in shape.without("unknown") if name not in unknown]
        rows.append((shape.shape, bytes_text(shape.state_bytes), *texts, ", ".join(engines)))
    dtypes = {shape.state_dtype for shape in report.shapes}
    state = "state" if len(dtypes) > 1 else f"state,\n{dtypes.pop()}"
    header = ("shape", state, *figures, "refused by")
    title = f"Shapes, now and after a cut{f'; {options.counted}' if counted else ''}"
    terminal.print_table(title, header, rows, left=(0, len(header) - 1))
    text = "prefix: tokens of the shortest that is cached; " if counted else ""
    text += "refused by: on some hardware at least, ?: not known"
    if left_out:
        text += f"; {left_out} that {options.counted_by.name} refuses are left out"
    if unknown:
        text += f"; not known of any shape: {', '.join(sorted(unknown))}"
    terminal.print_text(f"{text}; one shape: --to KEYSxVALUES")


def _show_matrix(shapes: list[ServedShape]) -> None:
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


def _show_engines(deployment: Deployment) -> None:
    from ...serving.deployment import command_comment, engine_rows

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
        terminal.print_command(f"{serving}   {command_comment(engine)}")


def _show_capacity(deployment: Deployment, served: Fit) -> None:
    """Print a row per shape and dtype; the gain is over what is `served` without a cut."""
    from ...serving.capacity.compare import gain_text
    from ...serving.engines import find_engine

    rows, cached = [], []
    for row in deployment.capacity:
        fit = row.fit
        name = f"{row.shape} {row.state_dtype}{' (default)' if row.is_default else ''}"
        rows.append(
            (
                name,
                f"{fit.states:g} x {bytes_text(fit.state_bytes)}",
                fit_text(fit.sequences),
                gain_text(fit, served) if fit is not served else "",
                bytes_text(fit.transfer_bytes),
            )
        )
        counts = [fit.block_size, fit.shortest_prefix, fit.requests]
        block, prefix, requests = (f"{count:,}" if count else "" for count in counts)
        sizes = [bytes_text(fit.stored_bytes), bytes_text(fit.block_bytes)]
        cached.append((name, block, prefix, *sizes, requests))
    terminal.print_table(
        f"Sequences of {deployment.context:,} tokens in {deployment.memory_gib:g} GiB, "
        f"by {deployment.engine}",
        ("state", "per request", "sequences", "gain", "to decode"),
        rows,
    )
    header = (
        "state",
        "block",
        "shortest\nprefix",
        "stored\nstate",
        "cached\nblock",
        "most\nrequests",
    )
    terminal.print_table("Prefix cache, in tokens and bytes", header, cached)
    text = f"keys and values: {served.token_bytes / 2**10:,.1f} KiB per token"
    if served.host_bytes:
        text += f"; checkpoints in host memory: {bytes_text(served.host_bytes)} a slot"
    if flag := find_engine(deployment.engine).requests_flag:
        text += f"; most requests: the largest {flag} that the states allow"
    terminal.print_text(f"{text}; docs/capacity.md explains the columns")


def _show_best_flags(deployment: Deployment, served: Fit) -> None:
    """Print the flags that give most without a cut, in a line."""
    ranked = sorted(deployment.try_first, key=lambda gain: -gain.fit.sequences)
    best = [gain for gain in ranked if gain.fit.sequences > served.sequences][:MAX_FLAGS]
    if best:
        texts = [f"{gain.flag} ({fit_text(gain.fit.sequences)})" for gain in best]
        terminal.print_text(f"try first, without a cut: {'; '.join(texts)}")


def _show_try_first(deployment: Deployment, served: Fit) -> None:
    from ...serving.capacity.compare import gain_text

    if not deployment.try_first:
        return
    rows = []
    for gain in deployment.try_first:
        fits = [gain.fit, gain.cut_fit] if gain.cut_fit else [gain.fit]
        cells = [f"{fit_text(fit.sequences)} ({gain_text(fit, served)})" for fit in fits]
        rows.append((gain.flag, *cells, gain.cost))
    with_cut = ("with the cut",) if deployment.try_first[0].cut_fit else ()
    header = ("flag", "sequences", *with_cut, "cost")
    terminal.print_table("Try these first", header, rows, left=(0, len(header) - 1))
