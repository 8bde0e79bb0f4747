"""What the kit runs: commands of statetrim, each with the file or directory it makes.

A step's command is built when it starts, because two of them depend on earlier results: the widths
by layer on the measured sensitivity, the length of recovery on the time that is left.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statetrim.artifacts.sensitivity import Sensitivity
from statetrim.selection.allocate import allocate

Command = list[str]
MEASURED = """
import atexit, runpy, sys
def peak():
    cuda = sys.modules["torch"].cuda if "torch" in sys.modules else None
    gpus = range(cuda.device_count() if cuda and cuda.is_available() else 0)
    print("peak", *(cuda.max_memory_allocated(gpu) for gpu in gpus), file=sys.stderr)
atexit.register(peak)
runpy.run_module("statetrim", run_name="__main__", alter_sys=True)
"""
"""`statetrim`, which says last how many bytes it took on each GPU."""
SHARES = (0.75, 0.5, 0.25)
"""Of the channels on both axes, in the sweep of one shape for all layers."""
CUTS = ("uniform-75", "uniform-50", "uniform-25", "by-layer-50")
TASKS = (
    "text", "mqar", "hellaswag", "squad", "fda", "swde", "gsm8k", "niah_single_1", "niah_single_2",
    "niah_multikey_1",
)  # fmt: skip
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
    extra: tuple[str, ...] = ()  # options of recovery, for a small run
    hub_id: str = ""  # of the model as published, for the results; none for a directory

    def path(self, name: str) -> Path:
        return self.work / name


@dataclass(frozen=True)
class Step:
    """One command; the second argument of `command` is the seconds of the budget that are left."""

    name: str
    makes: str
    command: Callable[[Kit, float], Command]


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


def steps(kit: Kit, head: tuple[int, int], *, gpus: int, vllm: bool) -> list[Step]:
    """All steps for a model whose heads have `head` key and value channels, in order."""
    calibrate = "calibrate {model} {read} --tokens {tokens} {sizes} -o {out}"
    plan = [
        _step("inspect", "inspect.json", "inspect {model} --json"),
        _step("calibrate", "statistics.safetensors", f"{calibrate} {{placed}}"),
        _step("calibrate layerwise", "layerwise.safetensors",
              f"{calibrate} --layerwise {{placed}}"),
        _step("gradients", "grad.safetensors", f"{calibrate} --for grad {{placed}}"),
        _step("analyze", "analysis.json", "analyze {model} {unread} {analyzed} {placed} -o {out}"),
        _step("sensitivity", "sensitivity.json", "analyze {model} --sensitivity {read} "
              "--tokens {few} {sizes} {placed} -o {out}"),
        _step("stored states", "snapshots.json", "snapshot {model} {unread} --length {half} "
              "{placed} -o {out}"),
    ]  # fmt: skip
    if gpus > 1:
        spread = _step("calibrate spread", "spread.safetensors", f"{calibrate} --device-map auto")
        plan.insert(3, spread)
    shapes = [_shape(head, share) for share in SHARES]
    for cut, to in zip(CUTS, [*shapes, "{widths}"], strict=True):
        plan += [
            _step(f"select {cut}", f"plan-{cut}.json", f"select {{model}} --to {to} "
                  "--statistics {work}/statistics.safetensors -o {out}"),
            _step(f"prune {cut}", f"cut-{cut}", f"prune {{model}} {{work}}/plan-{cut}.json "
                  "--uneven -o {out}"),
            _step(f"compare {cut}", f"pairs-{cut}.safetensors", f"calibrate {{work}}/cut-{cut} "
                  "--original {model} {read} --tokens {tokens} {sizes} {placed} -o {out}"),
            _step(f"refit {cut}", f"fitted-{cut}", f"refit {{work}}/cut-{cut} "
                  f"--statistics {{work}}/pairs-{cut}.safetensors -o {{out}}"),
        ]  # fmt: skip
    half = "{work}/fitted-uniform-50"
    plan += [
        _step("recover", "recovered", f"recover {half} --teacher {{model}} {{read}} --recall 0.25 "
              "--tokens {trained} {sizes} {placed} -o {out} {extra}"),
        _step("recover layerwise", "recovered-layerwise", f"recover {half} --teacher {{model}} "
              "{read} --layerwise --tokens {few} {sizes} {placed} -o {out}"),
    ]  # fmt: skip
    for task in TASKS:
        source = {"text": "{unread}", "mqar": ""}.get(task, "{data}")
        plan.append(_step(f"evaluate {task}", f"scores-{task}.json", "evaluate {models} --baseline "
                          f"{{model}} --tasks {task} {source} --limit {{limit}} --batch-size "
                          "{batch_size} {placed} -o {out}"))  # fmt: skip
    plan.append(_step("benchmark", "timings.json", f"benchmark {half} --baseline {{model}} "
                      "--rounds 3 {placed} -o {out}"))  # fmt: skip
    if vllm:
        words = f"verify {half} --baseline {{model}} --engine vllm --engine-python {{python}}"
        plan.append(_step("serve in vLLM", "verification.json", f"{words} {{unread}} -o {{out}}"))
    return plan


def _shape(head: tuple[int, int], share: float) -> str:
    """The shape with this share of the channels on both axes, in multiples of eight if possible."""
    sizes = []
    for channels in head:
        kept = channels * share
        sizes.append(max(1, int(kept // 8 * 8) or int(kept)))
    return f"{sizes[0]}x{sizes[1]}"


def _step(name: str, makes: str, words: str) -> Step:
    """A step that runs `statetrim` with these words, in which {names} are those of `Words`."""

    def command(kit: Kit, left: float) -> Command:
        filled = words.format_map(Words(kit, left, kit.path(makes)))
        return [sys.executable, "-c", MEASURED, *shlex.split(filled)]

    return Step(name, makes, command)


class Words:
    """Values of the names in a command, quoted for a shell; each is computed if it is asked for."""

    def __init__(self, kit: Kit, left: float, out: Path) -> None:
        self.kit, self.left = kit, left
        unread = f"--text {shlex.quote(kit.heldout or kit.text)}"
        analyzed = f"--tokens {max(kit.length, kit.tokens // 16)} --length {kit.length}"
        self.texts = {
            "model": shlex.quote(kit.model), "work": shlex.quote(str(kit.work)),
            "out": shlex.quote(str(out)), "python": shlex.quote(sys.executable),
            "read": f"--text {shlex.quote(kit.text)}",
            "unread": unread if kit.heldout else f"{unread} --skip {READ_TOKENS}",
            "analyzed": f"{analyzed} --burn-in {kit.length // 4}",
            "tokens": str(kit.tokens), "few": str(kit.tokens // 4), "half": str(kit.length // 2),
            "sizes": f"--length {kit.length} --batch-size {kit.batch_size}",
            "limit": str(kit.limit), "batch_size": str(kit.batch_size),
            "placed": f"--device {kit.device}" if kit.device else "",
            "data": f"--data {shlex.quote(str(kit.data))}" if kit.data else "",
            "extra": shlex.join(kit.extra),
        }  # fmt: skip

    def __getitem__(self, name: str) -> str:
        return self.texts[name] if name in self.texts else str(getattr(self, f"_{name}")())

    def _widths(self) -> str:
        """By layer, for half of the bytes, by the sensitivity that was measured."""
        return str(allocate(Sensitivity.load(self.kit.path("sensitivity.json")), 0.5))

    def _trained(self) -> int:
        """Tokens of recovery for half of the time that is left, at the speed of calibration."""
        speed = self.kit.tokens / finished_steps(self.kit)["calibrate"]["seconds"]
        quarter = speed / 4  # a step of training: teacher, student and its gradient
        return min(READ_TOKENS, max(MIN_RECOVERY_TOKENS, int(quarter * self.left / 2)))

    def _models(self) -> str:
        """The cuts that exist."""
        paths = [self.kit.path(f"fitted-{cut}") for cut in CUTS] + [self.kit.path("recovered")]
        return shlex.join(str(path) for path in paths if path.exists())
