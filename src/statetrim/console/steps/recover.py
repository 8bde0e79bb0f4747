"""What a person sees of a recovery: coverage, progress, and the loss at both ends."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ...recovery.adapters import Coverage
from ...recovery.progress import Moment
from ...runtime.processes import is_lead
from ...storage.checkpoint import Checkpoint
from ...storage.json_file import read_object
from ...storage.output import ARTIFACTS, MOST_RECORD_BYTES
from .. import terminal


@contextmanager
def training_progress() -> Iterator[tuple[Any, Any]]:
    """Yields a function of the coverage and one of each moment; in a log, a line now and then."""
    speed = _Speed()

    def announce(coverage: Coverage) -> None:
        terminal.note(coverage_sentence(coverage))

    if not terminal.err.is_terminal:
        yield announce, _Lines(speed)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal.err, transient=True, disable=not is_lead()) as bar:
        task = bar.add_task("recovering", total=None, loss=math.nan, speed=0.0)

        def update(moment: Moment) -> None:
            bar.update(
                task,
                description=moment.label or "recovering",
                completed=moment.step,
                total=moment.steps,
                loss=moment.loss,
                speed=speed(moment),
            )

        yield announce, update


class _Speed:
    """Tokens a second since this process reported first."""

    def __init__(self) -> None:
        self.began: tuple[float, int] | None = None

    def __call__(self, moment: Moment) -> float:
        now = time.monotonic()
        if self.began is None or moment.tokens < self.began[1]:
            self.began = now, moment.tokens
        return (moment.tokens - self.began[1]) / max(now - self.began[0], 1e-9)


class _Lines:
    """A line every ten seconds, and for the last step."""

    def __init__(self, speed: _Speed) -> None:
        self.speed, self.told = speed, 0.0

    def __call__(self, moment: Moment) -> None:
        speed = self.speed(moment)
        if time.monotonic() - self.told < 10 and moment.step < moment.steps:
            return
        self.told = time.monotonic()
        left = moment.tokens * (moment.steps / moment.step - 1)
        time_left = f", {left / speed:,.0f} s left" if speed and left else ""
        label = f"{moment.label}: " if moment.label else ""
        terminal.note(
            f"{label}step {moment.step} of {moment.steps}, loss {moment.loss:.4f}, "
            f"{speed:,.0f} tokens/s{time_left}",
        )


def coverage_sentence(coverage: Coverage) -> str:
    """What is trained, so that nobody has to guess what LoRA missed."""
    share = coverage.trained_parameters / max(1, coverage.all_parameters)
    others = [
        f"{name} {adapted} of {total}"
        for name, (adapted, total) in (("softmax", coverage.softmax), ("MLP", coverage.mlp))
        if total
    ]
    return (
        f"training {coverage.projections} of {coverage.projections} projections and "
        f"{coverage.convolutions} convolutions of {coverage.layers} linear-attention layers"
        + (f" ({', '.join(others)} projections)" if others else "")
        + f": {coverage.trained_parameters:,} parameters, {share:.2%}"
    )


def show_recovery(recovered: Checkpoint, where: str, *, as_json: bool) -> None:
    record = read_object(recovered.path / ARTIFACTS / "recover.json", MOST_RECORD_BYTES)
    curve = record["curve"]
    if as_json:
        terminal.show_json({"output": where, "coverage": record["coverage"], "curve": curve})
        return
    table = Table(title="Recovery", title_justify="left")
    for name in ("", "first step", "last step"):
        table.add_column(name, justify="right" if name else "left")
    for name in ("loss", "ce", "kl"):
        if curve[0].get(name) is not None:
            table.add_row(name, f"{curve[0][name]:.4f}", f"{curve[-1][name]:.4f}")
    terminal.out.print(table)
    trained = len(record["trained_tensors"])
    terminal.say(
        f"{curve[-1]['tokens']:,} tokens in {len(curve)} steps; {trained} tensors changed, the "
        f"others are as they were; written to {where}",
    )
