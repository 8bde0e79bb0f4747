"""What a person sees of `inspect`: the state, engines and capacity."""

from typing import Any

from rich.table import Table

from ...maths.formatting import change, size
from ...serving.capacity import Capacity
from ...serving.deployment import Deployment, worth_showing
from ...serving.engine_names import named_command
from ...serving.engines import Compatibility
from ...serving.inspect import ServedShape, StateReport
from ...serving.state_size import StateSize
from .. import terminal


def show_report(report: StateReport, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json(report.as_json())
        return
    _show_state(report)
    if report.after is not None:
        _show_engines(report.deployment)
    elif report.shapes:
        _show_shapes(report.shapes)
    if report.deployment.capacity:
        _show_capacity(report.deployment)


def _show_state(report: StateReport) -> None:
    of = f" of {report.total_layers}" if report.total_layers else ""
    table = Table(title=f"{report.model_type}: recurrent state", title_justify="left")
    table.add_column("")
    table.add_column("now", justify="right")
    if report.after:
        table.add_column(_kept(report.before, report.after), justify="right")
        table.add_column("change", justify="right")
    _row(table, "linear-attention layers", f"{report.layers}{of}")
    if report.after and report.after.num_v_heads != report.num_v_heads:
        _compare(
            table,
            "key heads / value heads",
            report,
            lambda s: f"{s.num_k_heads} / {s.num_v_heads}",
            "num_v_heads",
        )
        _compare(
            table,
            "devices that can share them",
            report,
            lambda s: ", ".join(map(str, s.tensor_parallel)),
            "num_k_heads",
        )
    else:
        _row(table, "key heads / value heads", f"{report.num_k_heads} / {report.num_v_heads}")
    _compare(table, "state per head, keys x values", report, lambda s: s.shape)
    _compare(
        table,
        "recurrent state per sequence, float32",
        report,
        lambda s: size(s.state_bytes),
        "state_bytes",
    )
    _compare(
        table,
        "the same in bfloat16 (an engine option)",
        report,
        lambda s: size(s.state_bytes / 2),
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
    terminal.show(table)
    for warning in report.warnings:
        terminal.warn(f"note: {warning}")


def _kept(before: StateSize, after: StateSize) -> str:
    if after.num_v_heads != before.num_v_heads:
        return f"keep {after.num_v_heads} heads"
    also = f" x {after.head_v_dim}" if after.head_v_dim != before.head_v_dim else ""
    return f"keep {after.head_k_dim}{also}"


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


def _show_engines(found: Deployment) -> None:
    lines = worth_showing(found.engines)
    if not lines:
        terminal.say(f"no engine is known to serve or refuse {found.shape} for this model type")
        return
    table = Table(title=f"Engines and a state of {found.shape}", title_justify="left")
    for name in ("engine", "on", "verdict", "to know"):
        table.add_column(name)
    for line, hardware in _merged(lines):
        remark = line.error or (_flag(line) if line.flag else line.note)
        table.add_row(
            f"{line.engine} {line.versions}",
            ", ".join(hardware),
            f"{line.verdict} ({line.evidence})" if line.evidence else line.verdict,
            remark,
        )
    terminal.show(table)
    for engine, command in found.commands.items():
        terminal.say_command(named_command(engine, command))
    if found.everywhere and found.everywhere != found.shape:
        keys, _, values = found.everywhere.partition("x")
        text = f"nearest shape every engine serves: --keep {keys} --keep-values {values}"
        terminal.say(text)


def _show_shapes(shapes: list[ServedShape]) -> None:
    """Engines downwards, so that seven shapes fit into 80 columns."""
    table = Table(title="Which engines serve which shape, keys x values", title_justify="left")
    table.add_column("engine")
    for one in shapes:
        table.add_column(f"{one.shape}\n{one.share:.0%}", justify="right")
    for engine in shapes[0].engines:
        found = [one.engines[engine] for one in shapes]
        table.add_row(engine, *("?" if answer == "unknown" else answer for answer in found))
    terminal.show(table)
    terminal.say(
        "flag: some hardware needs a flag; ?: not known. Commands and reasons for one shape: "
        "add --keep KEYS --keep-values VALUES"
    )


def _flag(line: Compatibility) -> str:
    """A flag to copy stands whole in the command below the table, which would break it."""
    return "needs the flag in its command below" if line.serves else f"add {line.flag}"


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
    paged = ("vLLM block", "vLLM", "no prefix cache") if first.vllm else ()
    for name in ("state", "per sequence", *paged, "any engine"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for one in found.capacity:
        table.add_row(
            f"{one.shape} {one.state_dtype}",
            size(one.state_bytes + one.convolution_bytes),
            *_paged(first, one),
            f"{one.sequences_unpaged:,}",
        )
    terminal.show(table)
    vllm = "its maximum concurrency on one GPU, with prefix caching as by default"
    if not first.vllm:
        vllm = "not worked out without softmax attention"
    terminal.say(
        f"keys and values: {first.key_value_bytes / 2**10:,.1f} KiB a token in {first.dtype}, in "
        f"which engines serve this model; vLLM: {vllm}; any engine: memory over what a sequence "
        "holds",
    )
    if first.vllm:
        terminal.say("on CPUs vLLM takes blocks of a multiple of 128 tokens, so fewer may fit")


def _paged(first: Capacity, one: Capacity) -> tuple[str, ...]:
    """Block, sequences, and sequences without prefix caching; nothing where vLLM is left out."""
    if one.vllm is None or first.vllm is None:
        return ()
    times = one.vllm.sequences_prefix_caching / first.vllm.sequences_prefix_caching
    return (
        f"{one.vllm.block_size:,} tokens",
        f"{one.vllm.sequences_prefix_caching:,.1f}" + ("" if one is first else f" ({times:.2f}x)"),
        f"{one.vllm.sequences:,.1f}",
    )
