"""What a person sees of engines, capacity and timings."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from ..artifacts.timings import Timing, Timings
from ..maths.formatting import quantity, size
from ..serving.capacity import Capacity
from ..serving.deployment import Deployment
from ..serving.engines import Compatibility

_out = Console(markup=False)
_err = Console(stderr=True, markup=False)


def show_deployment(found: Deployment, *, cut: bool) -> None:
    if cut:
        _show_engines(found)
    if found.capacity:
        _show_capacity(found)


def _show_engines(found: Deployment) -> None:
    lines = _worth_showing(found.engines)
    if not lines:
        _out.print(f"no engine is known to serve or refuse {found.shape} for this model type")
        return
    table = Table(title=f"Engines and a state of {found.shape}", title_justify="left")
    for name in ("engine", "on", "verdict", "to know"):
        table.add_column(name, overflow="fold")
    for line, hardware in _merged(lines):
        remark = line.error or (f"add {line.flag}" if line.flag else line.note)
        table.add_row(
            f"{line.engine} {line.versions}",
            ", ".join(hardware),
            f"{line.verdict} ({line.evidence})" if line.evidence else line.verdict,
            remark,
        )
    _out.print(table)
    for engine, command in found.commands.items():
        _out.print(f"{engine}: {command}", highlight=False, soft_wrap=True)
    if found.everywhere and found.everywhere != found.shape:
        keys, _, values = found.everywhere.partition("x")
        text = f"nearest shape every engine serves: --keep {keys} --keep-values {values}"
        _out.print(text, highlight=False, soft_wrap=True)


def _worth_showing(lines: Iterable[Compatibility]) -> list[Compatibility]:
    """Current versions, and older ones where only they serve."""
    lines = list(lines)
    refusing = {line.engine for line in lines if line.current and not line.serves}
    return [line for line in lines if line.current or (line.serves and line.engine in refusing)]


def _merged(lines: list[Compatibility]) -> list[tuple[Compatibility, list[str]]]:
    """Hardware for which an engine does the same, on one line."""
    found: dict[tuple[str, ...], tuple[Compatibility, list[str]]] = {}
    for line in lines:
        same = (line.engine, line.versions, line.verdict, line.evidence, line.flag, line.error)
        found.setdefault(same, (line, []))[1].append(line.hardware)
    return list(found.values())


def _show_capacity(found: Deployment) -> None:
    assert found.memory is not None
    title = f"Sequences of {found.context:,} tokens in {found.memory / 2**30:g} GiB of cache"
    table = Table(title=title, title_justify="left")
    first = found.capacity[0]
    paged = ("vLLM block", "vLLM", "prefix cache") if first.vllm else ()
    for name in ("state", "per sequence", *paged, "any engine"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for one in found.capacity:
        table.add_row(
            f"{one.shape} {one.state_dtype}",
            size(one.state_bytes + one.convolution_bytes),
            *_paged(first, one),
            f"{one.sequences_unpaged:,}",
        )
    _out.print(table)
    vllm = "its maximum concurrency" if first.vllm else "not worked out without softmax attention"
    _out.print(
        f"keys and values: {first.key_value_bytes / 2**10:,.1f} KiB a token; vLLM: {vllm}; any "
        "engine: memory over what a sequence holds",
        highlight=False,
    )


def _paged(first: Capacity, one: Capacity) -> tuple[str, ...]:
    """Block, sequences, and sequences with prefix caching; nothing where vLLM is left out."""
    if one.vllm is None or first.vllm is None:
        return ()
    times = one.vllm.sequences / first.vllm.sequences
    return (
        f"{one.vllm.block_size:,} tokens",
        f"{one.vllm.sequences:,.1f}" + ("" if one is first else f" ({times:.2f}x)"),
        f"{one.vllm.sequences_prefix_caching:,.1f}",
    )


def show_timings(timings: Timings, where: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(timings.as_json() | {"output": where}, indent=2))
        return
    table = Table(title="Timings", title_justify="left")
    for name in ("", "batch", "length"):
        table.add_column(name, justify="right" if name else "left")
    for model in timings.models:
        table.add_column(model, justify="right", overflow="fold")
    rows: dict[tuple[str, int | None, int | None], dict[str, Timing]] = {}
    for record in timings.records:
        rows.setdefault((record.metric, record.batch, record.length), {})[record.model] = record
    for (metric, batch, length), cells in rows.items():
        found = [cells.get(model) for model in timings.models]
        unit = next(record.unit for record in found if record)
        first = found[0].value if found[0] else 0.0
        table.add_row(
            f"{metric}, {unit}",
            "" if batch is None else str(batch),
            "" if length is None else str(length),
            *[_timing_cell(record, first, index) for index, record in enumerate(found)],
        )
    _out.print(table)
    for label, lines in timings.lineage.get("log", {}).items():
        for line in lines:
            _out.print(f"{label}: {line}", highlight=False, soft_wrap=True)
    _out.print(f"medians, (ratio to the first model); written to {where}", highlight=False)


def _timing_cell(record: Timing | None, first: float, index: int) -> str:
    if record is None:
        return ""
    value = quantity(record.value)
    ratio = record.ratio
    if ratio is None and index and first:
        ratio = record.value / first
    return value if ratio is None else f"{value} ({ratio:.2f}x)"


@contextmanager
def settings_progress() -> Iterator[Any]:
    """Yields a function of what is being timed, how much is done, and how much there is."""
    if not _err.is_terminal:
        yield lambda label, done, total: _err.print(
            f"{label} ({done} of {total} done)", highlight=False
        )
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=_err, transient=True) as progress:
        task = progress.add_task("loading", total=None)
        yield lambda label, done, total: progress.update(
            task, description=label, completed=done, total=total
        )
