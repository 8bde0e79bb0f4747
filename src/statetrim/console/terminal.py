"""What a person sees: tables on standard output, progress on standard error."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from torch import Tensor

from ..artifacts.analysis import Analysis
from ..artifacts.plan import Plan
from ..artifacts.scores import Scores
from ..artifacts.statistics import Statistics
from ..artifacts.verdicts import recall_change, verdicts
from ..geometry import Geometry
from ..maths.formatting import change, score_text, size
from ..serving.inspect import StateReport, StateSize
from ..storage.checkpoint import Checkpoint
from ..storage.json_file import read_object
from ..storage.output import ARTIFACTS, MOST_RECORD_BYTES
from ..surgery.prune import Surgery

_out = Console(markup=False)
_err = Console(stderr=True, markup=False)


def show_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def show_report(report: StateReport) -> None:
    of = f" of {report.total_layers}" if report.total_layers else ""
    table = Table(title=f"{report.model_type}: recurrent state", title_justify="left")
    table.add_column("")
    table.add_column("now", justify="right")
    if report.after:
        values = report.after.head_v_dim
        also = f" x {values}" if values != report.before.head_v_dim else ""
        table.add_column(f"keep {report.after.head_k_dim}{also}", justify="right")
        table.add_column("change", justify="right")
    _row(table, "linear-attention layers", f"{report.layers}{of}")
    _row(table, "key heads / value heads", f"{report.num_k_heads} / {report.num_v_heads}")
    _compare(
        table, "state per head, keys x values", report, lambda s: f"{s.head_k_dim} x {s.head_v_dim}"
    )
    _compare(
        table,
        "recurrent state per sequence, float32",
        report,
        lambda s: size(s.state_bytes),
        "state_bytes",
    )
    _compare(
        table,
        f"convolution state per sequence, {report.conv_dtype}",
        report,
        lambda s: size(s.conv_bytes),
        "conv_bytes",
    )
    if report.parameters:
        cells = [f"{report.parameters:,}"]
        if report.after:
            cells += [
                f"{report.parameters_after:,}",
                change(report.parameters, report.parameters_after),
            ]
        table.add_row("parameters", *cells)
    else:
        _row(table, "parameters", "no weights here")
    _out.print(table)
    for warning in report.warnings:
        _err.print(f"note: {warning}", style="yellow", highlight=False)


def show_plan(plan: Plan, before: Geometry, where: str) -> None:
    table = Table(title="Plan", title_justify="left", show_header=False)
    layers = len(plan.kept)
    if plan.keep < before.head_k_dim:
        table.add_row("method", _with_options(plan.method, plan.options))
        table.add_row("asked to keep", plan.requested)
        table.add_row("keeps per key head", f"{plan.keep} of {before.head_k_dim} channels")
        table.add_row("layers x key heads", f"{layers} x {before.num_k_heads}")
    if plan.value_method is not None:
        table.add_row("method for values", _with_options(plan.value_method, plan.value_options))
        table.add_row("asked to keep", str(plan.requested_values))
        table.add_row("keeps per value head", f"{plan.keep_values} of {before.head_v_dim} channels")
        table.add_row("layers x value heads", f"{layers} x {before.heads('value')}")
    table.add_row("seed", str(plan.seed))
    table.add_row("written to", where)
    _out.print(table)


def _with_options(method: str, options: Mapping[str, Any]) -> str:
    return method + "".join(f", {name}={value}" for name, value in options.items())


def show_surgery(surgery: Surgery, where: str, *, done: bool) -> None:
    before, after = surgery.model.geometry, surgery.geometry
    title = "Pruned" if done else "Dry run: nothing was written"
    table = Table(title=title, title_justify="left")
    for name in ("", "before", "after", "change"):
        table.add_column(name, justify="right" if name else "left")
    rows = [
        (
            "state per head, keys x values",
            before.head_k_dim * before.head_v_dim,
            after.head_k_dim * after.head_v_dim,
        ),
        ("recurrent state per sequence, float32", before.state_numel * 4, after.state_numel * 4),
        ("weights", surgery.bytes_before, surgery.bytes_after),
        ("parameters", surgery.model.parameters, surgery.parameters_after),
    ]
    widths = (
        f"{before.head_k_dim} x {before.head_v_dim}",
        f"{after.head_k_dim} x {after.head_v_dim}",
    )
    table.add_row(rows[0][0], *widths, change(rows[0][1], rows[0][2]))
    for name, old, new in rows[1:3]:
        table.add_row(name, size(old), size(new), change(old, new))
    name, old, new = rows[3]
    table.add_row(name, f"{old:,}", f"{new:,}", change(old, new))
    _out.print(table)
    files = f"{len(surgery.shards)} weight files, {len(surgery.companions)} files beside them"
    verb = "written to" if done else "would go to"
    _out.print(f"{len(surgery.cuts)} tensors cut; {files} {verb} {where}", highlight=False)


def show_refit(model: Checkpoint, where: str, *, as_json: bool) -> None:
    """The part of every layer's output that is missed, before and after."""
    layers = read_object(model.path / ARTIFACTS / "refit.json", MOST_RECORD_BYTES)["layers"]
    if as_json:
        show_json({"output": where, "layers": layers})
        return
    table = Table(title="Refitted: part of each layer's output missed", title_justify="left")
    for name in ("layer", "before", "after", "change"):
        table.add_column(name, justify="right")
    for layer, error in layers.items():
        before, after = error["before"], error["after"]
        table.add_row(layer, f"{before:.2%}", f"{after:.2%}", f"{after / before - 1:+.0%}")
    _out.print(table)
    _out.print(f"squares, on the text of the fit; written to {where}", highlight=False)


def show_statistics(
    statistics: Statistics, model: Checkpoint, where: str, *, as_json: bool
) -> None:
    layers = statistics.layers.values()
    tokens = next(iter(layers)).tokens
    energy = [float(x.output_square.mean()) / tokens for x in layers if x.output_square is not None]
    if as_json:
        show_json(
            {
                "statistics": where,
                "tokens": tokens,
                "parts": sorted(statistics.parts),
                "output_energy": energy,
            }
        )
        return
    table = Table(title="Statistics", title_justify="left", show_header=False)
    table.add_row("tokens", f"{tokens:,}")
    table.add_row("layers x key heads", f"{len(statistics.layers)} x {model.geometry.num_k_heads}")
    table.add_row("sums", ", ".join(sorted(statistics.parts)))
    if energy:
        smallest = f"{min(energy):.3g} (the norm's eps: ~1e-6)"
        table.add_row("read-out energy, smallest layer", smallest)
    table.add_row("written to", where)
    _out.print(table)


def show_analysis(analysis: Analysis, where: str, figures: list[str]) -> None:
    """One row a layer; narrow enough for a terminal of 80 columns."""
    baseline, mean = analysis.baseline, analysis.mean_utilization
    before = None if baseline is None else baseline.mean_utilization
    top = float(mean.nan_to_num().max())
    table = Table(title="How full the state is", title_justify="left", show_footer=True)
    table.add_column("layer", "mean", justify="right")
    if before is not None:
        table.add_column("before", _percent(before), justify="right")
    table.add_column("used", _percent(mean), justify="right")
    table.add_column("heads", no_wrap=True)
    table.add_column("range", _range(mean), justify="right")
    for name in ("κ keys", "κ queries", "filters"):
        table.add_column(name, justify="right")
    for row, (number, layer) in enumerate(analysis.layers.items()):
        table.add_row(
            str(number),
            *([] if before is None else [_percent(before[row])]),
            _percent(mean[row]),
            _bars(mean[row], top),
            _range(mean[row]),
            f"{float(layer.key_condition.nanmedian()):,.0f}",
            f"{float(layer.query_condition.nanmedian()):,.0f}",
            _similarities(layer.query_similarity, layer.key_similarity),
        )
    _out.print(table)
    data, was = analysis.lineage["data"], f", before {baseline.widest}" if baseline else ""
    for line in (
        f"used: effective rank of a state over the largest it can have ({analysis.widest}{was}),",
        f"  mean of {data['count']} x {data['length']} tokens but the first {analysis.burn_in}; "
        "heads: one bar each",
        "κ: condition number, median head; filters: mean |cosine| in a head, of queries, of keys",
        f"written to {where}" + (f", and {len(figures)} pictures" if figures else ""),
    ):
        _out.print(line, highlight=False)


def _percent(values: Tensor) -> str:
    return f"{100 * float(values.nanmean()):.1f}%"


def _range(values: Tensor) -> str:
    known = values[values.isfinite()]
    return f"{100 * float(known.min()):.1f}-{100 * float(known.max()):.1f}%" if len(known) else ""


def _bars(values: Tensor, top: float, most: int = 16) -> str:
    """One bar a head, as high as it is full beside the fullest head of the model."""
    levels = "▁▂▃▄▅▆▇█"
    heights = (values.nan_to_num() / (top or 1.0) * (len(levels) - 1)).round().long().tolist()
    return "".join(levels[height] for height in heights[:most]) + (
        "…" if len(heights) > most else ""
    )


def _similarities(query: Tensor | None, key: Tensor | None) -> str:
    if query is None or key is None:
        return "none"
    return f"{float(query.mean()):.2f}, {float(key.mean()):.2f}"


@contextmanager
def tokens_progress(label: str) -> Iterator[Any]:
    """Yields a function to call with the tokens done and in all."""
    if _hidden():
        yield _Lines(label, "tokens")
        return
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_err, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def show_line(text: str) -> None:
    """A command or a remark between tables."""
    _out.print(text, style="bold" if text.startswith("$") else "dim", highlight=False)


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """Tables are not shown."""
    _out.quiet = quiet
    try:
        yield
    finally:
        _out.quiet = False


@contextmanager
def steps_progress(label: str) -> Iterator[Any]:
    """Yields a function to call with the steps done and in all; in a log, a line a quarter."""
    if _hidden():

        def line(done: int, total: int) -> None:
            if total >= 4 and done % (total // 4) == 0:
                _err.print(f"{label}: step {done} of {total}", highlight=False)

        yield line
        return
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_err, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def show_scores(scores: Scores, where: str, *, as_json: bool) -> None:
    found = verdicts(scores)
    if as_json:
        judged = [
            {
                "model": v.model,
                "task": v.task,
                "metric": v.metric,
                "loss": [v.loss.estimate, v.loss.low, v.loss.high],
                "unit": {"perplexity": "%", "share": "points", "nats": "nats"}[v.unit],
                "mcnemar_p": v.p,
                "verdict": v.sentence,
            }
            for v in found
        ]
        show_json(scores.as_json(samples=False) | {"verdicts": judged, "output": where})
        return
    table = Table(title="Scores", title_justify="left")
    table.add_column("task")
    table.add_column("metric")
    table.add_column("samples", justify="right")
    for model in scores.models:
        table.add_column(model, justify="right", overflow="fold")
    for task in scores.tasks:
        for metric in scores.metrics(task):
            cells = [scores.find(model, task, metric) for model in scores.models]
            name = task if metric == scores.metrics(task)[0] else ""
            count = str(len(cells[0].samples))
            table.add_row(
                name, metric, count, *[score_text(cell.value, cell.unit) for cell in cells]
            )
    _out.print(table)
    for verdict in found:
        p = "" if verdict.p is None else f" (McNemar p = {verdict.p:.3g})"
        line = f"{verdict.task}, {verdict.metric}, {verdict.model}: {verdict.sentence}{p}"
        _out.print(line, highlight=False, soft_wrap=True)
    for model in scores.models[1:]:
        moved = recall_change(scores, model)
        if moved is not None:
            text = f"{moved.estimate:+.2f} points, between {moved.low:+.2f} and {moved.high:+.2f}"
            _out.print(f"mean recall, {model}: {text}", highlight=False, soft_wrap=True)
    _out.print(f"intervals of 95%, paired by sample; written to {where}", highlight=False)


@contextmanager
def tasks_progress() -> Iterator[Any]:
    """Yields a function of model, task, done and total; in a log, a line for each task."""
    if _hidden():
        finished: set[tuple[str, str]] = set()

        def line(model: str, task: str, done: int, total: int) -> None:
            if done == total and total == 1 and (model, task) not in finished:
                finished.add((model, task))
                _err.print(f"{model}: {task} done", highlight=False, soft_wrap=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=_err, transient=True) as progress:
        bars: dict[tuple[str, str], Any] = {}

        def update(model: str, task: str, done: int, total: int) -> None:
            if (model, task) not in bars:
                bars.clear()
                for bar in progress.task_ids:
                    progress.remove_task(bar)
                bars[model, task] = progress.add_task(f"{model}: {task}", total=None)
            progress.update(bars[model, task], completed=done, total=total)

        yield update


@contextmanager
def bytes_progress(label: str, total: int) -> Iterator[Any]:
    """Yields a function to call with the bytes just written."""
    if _hidden():
        lines, done = _Lines(label, "bytes"), 0

        def written(count: int) -> None:
            nonlocal done
            done += count
            lines(done, total)

        yield written
        return
    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_err, transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


def layers_progress(label: str) -> Any:
    """Wraps an iteration over layers in a progress bar."""
    from rich.progress import track

    return lambda layers: track(
        layers, description=label, console=_err, transient=True, disable=_hidden()
    )


class _Lines:
    """For a log: a line now and then, none for what is done at once."""

    patience = 10.0  # seconds

    def __init__(self, label: str, unit: str) -> None:
        self.label, self.unit = label, unit
        self.told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.told >= self.patience:
            self.told = time.monotonic()
            text = f"{self.label}: {done:,} of {total:,} {self.unit}, {100 * done // total}%"
            _err.print(text, highlight=False, soft_wrap=True)


def _hidden() -> bool:
    """Only a terminal gets a bar; in a log it would be an empty line before what matters."""
    return not _err.is_terminal


def _row(table: Table, name: str, value: str) -> None:
    table.add_row(name, value, *[value if i == 0 else "" for i in range(len(table.columns) - 2)])


def _compare(table: Table, name: str, report: StateReport, show: Any, field: str = "") -> None:
    cells = [show(report.before)]
    if report.after:
        old, new = (_number(size, field) for size in (report.before, report.after))
        cells += [show(report.after), change(old, new)]
    table.add_row(name, *cells)


def _number(size: StateSize, field: str) -> int:
    return int(getattr(size, field)) if field else size.head_k_dim * size.head_v_dim
