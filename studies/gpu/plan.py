"""What the kit runs: commands of statetrim and lm-eval, each with the file or directory it makes.

A step's command is built when it starts, because two of them depend on earlier results: the widths
by layer on the measured sensitivity, the length of recovery on the time that is left.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statetrim.artifacts.sensitivity import Sensitivity
from statetrim.selection.allocate import allocate

Command = list[str]
STATETRIM = [sys.executable, "-m", "statetrim"]
SHARES = (0.75, 0.5, 0.25)
"""Of the channels on both axes, in the sweep of one shape for all layers."""

RECALL_TASKS = ("squad", "fda", "swde")
NEEDLES = ("niah_single_1", "niah_single_2", "niah_multikey_1")
"""RULER's tasks, at 4,096 tokens."""

MIN_RECOVERY_TOKENS = 2**18
READ_TOKENS = 2**27
"""Of the text, by calibration and recovery; without `heldout`, the rest is held out."""


@dataclass(frozen=True)
class Kit:
    """The options of a run, as `run.py` reads them."""

    model: str
    work: Path
    text: str
    heldout: str = ""  # text for perplexity; without it, a later part of `text`
    data: Path | None = None  # files of tasks; None: from the hub
    device: str | None = None
    tokens: int = 2**18
    length: int = 512
    batch_size: int = 8
    limit: int = 256
    extra: tuple[str, ...] = field(default=())  # options of recovery, for a small run
    hub_id: str = ""  # of the model as published, for the results; none for a directory

    def path(self, name: str) -> Path:
        return self.work / name

    @property
    def placed(self) -> Command:
        return ["--device", self.device] if self.device else []

    @property
    def unread(self) -> Command:
        """Text that calibration and recovery do not read."""
        skip = [] if self.heldout else ["--skip", str(READ_TOKENS)]
        return ["--text", self.heldout or self.text, *skip]

    @property
    def sizes(self) -> Command:
        return ["--length", str(self.length), "--batch-size", str(self.batch_size)]


@dataclass(frozen=True)
class Step:
    """One command. `passes` is its cost in runs of `Kit.tokens` tokens through the model."""

    name: str
    makes: str
    command: Callable[[Kit, float], Command]  # the second argument: seconds of the budget left
    passes: float = 0.0
    copies: int = 0  # of the weights, written to the disk
    generated: int = 0  # tokens of each sample, one after another, over all models


def finished_steps(kit: Kit) -> dict[str, dict[str, Any]]:
    """The last line about each step; a line that was not written whole is left out."""
    path, rows = kit.path("steps.jsonl"), {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["name"]] = row
    return rows


def steps(kit: Kit, head: tuple[int, int], *, vllm: bool) -> list[Step]:
    """All steps for a model whose heads have `head` key and value channels, in order."""
    shapes = {f"{share:.0%}": _shape(head, share) for share in SHARES}
    plan = [
        Step("inspect", "inspect.json", _inspect),
        Step("calibrate", "statistics.safetensors", _calibrate, 1.3),
        Step("analyze", "analysis.json", _analyze, 0.2),
        Step("sensitivity", "sensitivity.json", _sensitivity, 8),
        Step("stored states", "snapshots.json", _snapshot, 0.5),
    ]
    for name, to in shapes.items():
        plan += _cut_steps(f"uniform {name}", _fixed(to))
    plan += _cut_steps("by layer 50%", _widths_by_layer)
    plan.append(Step("recover", "recovered", _recover, 0, copies=1))
    cuts = [f"uniform {name}" for name in shapes]
    models = len(cuts) + 3  # the original, widths by layer, recovered
    for task in ("text", "mqar", "hellaswag", *RECALL_TASKS):
        makes, command = f"scores-{task}.json", _evaluate(task, cuts)
        generated = 48 * models if task in RECALL_TASKS else 0
        plan.append(Step(f"evaluate {task}", makes, command, 3, generated=generated))
    for name in ("original", "uniform 50%", "recovered"):
        for task in ("gsm8k", *NEEDLES):
            makes, command = f"lm-eval-{task}-{_file(name)}.json", _lm_eval(name, task)
            generated = 128 if task in NEEDLES else 256
            plan.append(Step(f"{task} of {name}", makes, command, 4, generated=generated))
    if vllm:
        plan.append(Step("serve in vLLM", "verification.json", _verify, 1))
    return plan


def _shape(head: tuple[int, int], share: float) -> str:
    """The shape with this share of the channels on both axes, in multiples of eight if possible."""
    sizes = []
    for channels in head:
        kept = channels * share
        sizes.append(max(1, int(kept // 8 * 8) or int(kept)))
    return f"{sizes[0]}x{sizes[1]}"


def _fixed(shape: str) -> Callable[[Kit, float], str]:
    return lambda kit, left: shape


def _cut_steps(name: str, to: Callable[[Kit, float], str]) -> list[Step]:
    """Select, prune, collect the sums of a refit, and refit: the cut is `fitted-NAME`."""
    file = _file(name)

    def select(kit: Kit, left: float) -> Command:
        statistics = str(kit.path("statistics.safetensors"))
        out = str(kit.path(f"plan-{file}.json"))
        return [
            *STATETRIM, "select", kit.model, "--to", to(kit, left), "--statistics", statistics,
            "-o", out,
        ]  # fmt: skip

    def prune(kit: Kit, left: float) -> Command:
        plan, out = str(kit.path(f"plan-{file}.json")), str(kit.path(f"cut-{file}"))
        return [*STATETRIM, "prune", kit.model, plan, "--uneven", "-o", out]

    def calibrate(kit: Kit, left: float) -> Command:
        cut, out = str(kit.path(f"cut-{file}")), str(kit.path(f"pairs-{file}.safetensors"))
        return [
            *STATETRIM, "calibrate", cut, "--original", kit.model, "--text", kit.text, "--tokens",
            str(kit.tokens), *kit.sizes, *kit.placed, "-o", out,
        ]  # fmt: skip

    def refit(kit: Kit, left: float) -> Command:
        pairs = str(kit.path(f"pairs-{file}.safetensors"))
        cut, out = str(kit.path(f"cut-{file}")), str(kit.path(f"fitted-{file}"))
        return [*STATETRIM, "refit", cut, "--statistics", pairs, "-o", out]

    return [
        Step(f"select {name}", f"plan-{file}.json", select),
        Step(f"prune {name}", f"cut-{file}", prune, copies=1),
        Step(f"compare {name}", f"pairs-{file}.safetensors", calibrate, 2),
        Step(f"refit {name}", f"fitted-{file}", refit, copies=1),
    ]


def _widths_by_layer(kit: Kit, left: float) -> str:
    """Half of the bytes, by the sensitivity that was measured."""
    return str(allocate(Sensitivity.load(kit.path("sensitivity.json")), 0.5))


def _inspect(kit: Kit, left: float) -> Command:
    return [*STATETRIM, "inspect", kit.model, "--json"]


def _calibrate(kit: Kit, left: float) -> Command:
    return [
        *STATETRIM, "calibrate", kit.model, "--text", kit.text, "--tokens", str(kit.tokens),
        *kit.sizes, *kit.placed, "-o", str(kit.path("statistics.safetensors")),
    ]  # fmt: skip


def _analyze(kit: Kit, left: float) -> Command:
    tokens = max(kit.length, kit.tokens // 16)
    return [
        *STATETRIM, "analyze", kit.model, *kit.unread, "--tokens", str(tokens), "--length",
        str(kit.length), "--burn-in", str(kit.length // 4), *kit.placed, "-o",
        str(kit.path("analysis.json")),
    ]  # fmt: skip


def _sensitivity(kit: Kit, left: float) -> Command:
    return [
        *STATETRIM, "analyze", kit.model, "--sensitivity", "--text", kit.text, "--tokens",
        str(kit.tokens // 4), *kit.sizes, *kit.placed, "-o", str(kit.path("sensitivity.json")),
    ]  # fmt: skip


def _snapshot(kit: Kit, left: float) -> Command:
    return [
        *STATETRIM, "snapshot", kit.model, *kit.unread, "--length", str(kit.length // 2),
        *kit.placed, "-o", str(kit.path("snapshots.json")),
    ]  # fmt: skip


def _recover(kit: Kit, left: float) -> Command:
    """Train the cut to a half for as long as half of the time that is left allows, at the speed at
    which calibration read."""
    seconds = finished_steps(kit)["calibrate"]["seconds"]
    speed = kit.tokens / seconds / 4  # a step of training: teacher, student and its gradient
    tokens = min(READ_TOKENS, max(MIN_RECOVERY_TOKENS, int(speed * left / 2)))
    return [
        *STATETRIM, "recover", str(kit.path("fitted-uniform-50")), "--teacher", kit.model,
        "--text", kit.text, "--recall", "0.25", "--tokens", str(tokens), *kit.sizes, *kit.placed,
        "-o", str(kit.path("recovered")), *kit.extra,
    ]  # fmt: skip


def _evaluate(task: str, cuts: list[str]) -> Callable[[Kit, float], Command]:
    def command(kit: Kit, left: float) -> Command:
        models = [kit.path(f"fitted-{_file(name)}") for name in (*cuts, "by layer 50%")]
        models.append(kit.path("recovered"))
        existing = [str(path) for path in models if path.exists()]
        source = kit.unread if task == "text" else []
        source += ["--data", str(kit.data)] if kit.data and task not in ("text", "mqar") else []
        return [
            *STATETRIM, "evaluate", *existing, "--baseline", kit.model, "--tasks", task, *source,
            "--limit", str(kit.limit), "--batch-size", str(kit.batch_size), *kit.placed, "-o",
            str(kit.path(f"scores-{task}.json")),
        ]  # fmt: skip

    return command


def _lm_eval(name: str, task: str) -> Callable[[Kit, float], Command]:
    def command(kit: Kit, left: float) -> Command:
        paths = {"original": kit.model, "recovered": str(kit.path("recovered"))}
        path = paths.get(name, str(kit.path(f"fitted-{_file(name)}")))
        return [
            sys.executable, str(Path(__file__).with_name("ask_lm_eval.py")), path, task, "--limit",
            str(kit.limit), "--batch-size", str(kit.batch_size), *kit.placed, "-o",
            str(kit.path(f"lm-eval-{task}-{_file(name)}.json")),
        ]  # fmt: skip

    return command


def _verify(kit: Kit, left: float) -> Command:
    return [
        *STATETRIM, "verify", str(kit.path("fitted-uniform-50")), "--baseline", kit.model,
        "--engine", "vllm", "--engine-python", sys.executable, *kit.unread, "-o",
        str(kit.path("verification.json")),
    ]  # fmt: skip


def _file(name: str) -> str:
    return name.replace(" ", "-").removesuffix("%")
