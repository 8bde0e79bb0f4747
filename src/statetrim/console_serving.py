"""What a person sees of engines, capacity and timings."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from .concurrency import Capacity
from .deployment import Deployment
from .engines import Compatibility

_out = Console(markup=False)


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
        same = (line.engine, line.versions, line.verdict, line.flag, line.error)
        found.setdefault(same, (line, []))[1].append(line.hardware)
    return list(found.values())


def _show_capacity(found: Deployment) -> None:
    assert found.memory is not None
    title = f"Sequences of {found.context:,} tokens in {found.memory / 2**30:g} GiB of cache"
    table = Table(title=title, title_justify="left")
    for name in ("state", "per sequence", "vLLM block", "vLLM", "prefix cache", "any engine"):
        table.add_column(name, justify="left" if name == "state" else "right")
    first = found.capacity[0]
    for one in found.capacity:
        vllm = one.vllm
        table.add_row(
            f"{one.shape} {one.state_dtype}",
            f"{(one.state_bytes + one.convolution_bytes) / 2**20:,.1f} MiB",
            f"{vllm.block_size:,} tokens" if vllm else "",
            f"{vllm.sequences:,.1f}" + _times(first, one) if vllm else "",
            f"{vllm.sequences_prefix_caching:,.1f}" if vllm else "",
            f"{one.sequences_unpaged:,}",
        )
    _out.print(table)
    _out.print(
        f"keys and values: {first.key_value_bytes / 2**10:,.1f} KiB a token; vLLM: its maximum "
        "concurrency; any engine: memory over what a sequence holds",
        highlight=False,
    )


def _times(first: Capacity, one: Capacity) -> str:
    if one is first or not one.vllm or not first.vllm:
        return ""
    return f" ({one.vllm.sequences / first.vllm.sequences:.2f}x)"
