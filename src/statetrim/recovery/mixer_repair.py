"""Repair one mixer at a time against the original's, on the original's own inputs.

The original walks through its decoder layers one by one: the hidden states of the whole text lie on
disk between two layers, and of the weights only one layer's are in memory, with one mixer of the
student. A layer is the unit of work: an interrupted one is done again from its beginning.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import StatetrimError
from ..progress import OnProgress, Progress
from ..runtime.loading import load_live
from ..runtime.mixers import MixerCall, hook_mixers
from ..runtime.placement import Placement
from ..runtime.sequential import LayerWalk, Turn
from ..storage.checkpoint import Checkpoint
from ..storage.safetensors_file import save_tensors
from .adapters import Adapters, Update, attach_to_mixer, attach_whole, named_mixers
from .data import Batch, RecallRows, TrainingRows
from .held_out import due, stalled

Curve = list[dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """How every mixer is trained."""

    rank: int
    alpha: int
    learning_rate: float
    last_learning_rate: float
    warm_up: float
    mixed_precision: bool
    seed: int
    layers: tuple[int, ...] = ()  # those to repair; none: all
    whole: bool = False
    patience: int = 0


@dataclass
class Repaired:
    """What was trained, the loss of every step of every layer, and the error on held-out recall."""

    adapters: Adapters
    trained: dict[str, Tensor]
    curve: Curve
    held_out: Curve


class Layerwise:
    """A student and its teacher on disk; `directory` keeps hidden states and finished layers."""

    def __init__(
        self,
        student: Checkpoint,
        teacher: Checkpoint,
        directory: Path,
        recipe: Recipe,
        placement: Placement,
    ) -> None:
        self.checkpoint, self.directory, self.recipe = student, directory, recipe
        self.student = load_live(student, placement)
        self.teacher = load_live(teacher, placement)
        self.student.module.requires_grad_(False)
        if set(self.student.mixers) != set(self.teacher.mixers):
            raise StatetrimError("teacher and student have linear attention in different layers")
        self.repaired = named_mixers(self.student, recipe.layers)

    def run(self, data: TrainingRows, batch_size: int, progress: OnProgress) -> Repaired:
        """Behind the batches that are trained on comes what is held out, as one more."""
        batches = data.batches(batch_size)
        inputs = [ids for ids, _ in batches]
        if data.recall is not None:
            inputs.append(data.recall.held_out.long())
        for ids in inputs:
            self.student.check_ids(ids)
        walk = LayerWalk(self.teacher, inputs, self.directory)
        for turn in walk.turns(max(self.repaired) + 1):
            if turn.number in self.repaired:
                self._repair(turn, batches, data.recall, progress)
            else:
                for _ in turn.run():
                    pass
        return self._result()

    def _repair(
        self, turn: Turn, batches: list[Batch], recall: RecallRows | None, progress: OnProgress
    ) -> None:
        """The teacher's layer runs over all of the text, and the student's learns from it."""
        number, tokens, calls = turn.number, 0, list[MixerCall]()
        training = self._training(number, len(batches), recall)
        with hook_mixers({number: self.teacher.mixers[number]}, calls.append):
            if recall is not None:
                for _ in turn.run([len(batches)]):
                    training.hold_out(calls.pop())
            for step in turn.run(range(len(batches))):
                ids, made = batches[step]
                tokens += ids.numel()
                loss = training.step(calls.pop(), made, tokens)
                label = f"layer {number}"
                progress(Progress(step + 1, len(batches), "steps", label, tokens, loss))
        training.save(self.directory / f"layer-{number}.safetensors")

    def _training(self, number: int, steps: int, recall: RecallRows | None) -> "_MixerTraining":
        mixer = self.repaired[number]
        name = next(name for name, module in self.student.module.named_modules() if module is mixer)
        assert self.student.weights is not None
        self.student.weights.settle(mixer)
        torch.manual_seed(self.recipe.seed * 100_003 + number)  # also after a resume
        found = Adapters()
        rank, alpha = self.recipe.rank, self.recipe.alpha
        if self.recipe.whole:
            attach_whole(mixer, name, self.checkpoint, found)
        else:
            attach_to_mixer(mixer, name, self.checkpoint, found, rank=rank, alpha=alpha)
        asked = None if recall is None else recall.asked
        return _MixerTraining(number, name, mixer, found, self.recipe, steps, asked)

    def _result(self) -> Repaired:
        """From the files of all layers, whether this process wrote them or one before it."""
        result = Repaired(Adapters(), {}, [], [])
        total = result.adapters.coverage
        for number in sorted(self.repaired):
            path = self.directory / f"layer-{number}.safetensors"
            with safe_open(path, framework="pt") as file:
                about = file.metadata()
                result.trained |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            result.curve += json.loads(about["curve"])
            result.held_out += json.loads(about["held_out"])
            for stored, parameters, scale in json.loads(about["updates"]):
                result.adapters.updates.append(Update(tuple(stored), tuple(parameters), scale))
            for field in ("layers", "projections", "convolutions"):
                count = getattr(total, field) + json.loads(about["coverage"])[field]
                setattr(total, field, count)
        total.trained_parameters = sum(value.numel() for value in result.trained.values())
        total.all_parameters = self.checkpoint.parameters
        return result


class _MixerTraining:
    """One mixer of the student, and its training."""

    def __init__(
        self,
        layer: int,
        name: str,
        mixer: nn.Module,
        adapters: Adapters,
        recipe: Recipe,
        steps: int,
        asked: Tensor | None,
    ) -> None:
        from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

        self.layer, self.name, self.mixer, self.adapters = layer, name, mixer, adapters
        self.mixed_precision, self.patience = recipe.mixed_precision, recipe.patience
        self.steps, self.asked, self.stopped = steps, asked, False
        self.trained = {n: p for n, p in mixer.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=recipe.learning_rate, weight_decay=0.0
        )
        self.schedule = get_cosine_with_min_lr_schedule_with_warmup(
            self.optimizer,
            num_warmup_steps=round(recipe.warm_up * steps),
            num_training_steps=steps,
            min_lr=recipe.last_learning_rate,
        )
        self.curve: Curve = []
        self.checks: Curve = []
        self.held_out: MixerCall | None = None

    def hold_out(self, call: MixerCall) -> None:
        """Measure on this one, now and on the way."""
        self.held_out = call
        self._check(0)

    def _check(self, tokens: int) -> None:
        assert self.held_out is not None
        everything = torch.ones(len(self.held_out.output), dtype=torch.bool)
        with torch.no_grad():
            error = float(self._error(self.held_out, everything))
        self.checks.append({"layer": self.layer, "tokens": tokens, "recall_error": error})
        errors = [-line["recall_error"] for line in self.checks]
        self.stopped = stalled(errors, self.patience)

    def _error(self, call: MixerCall, made: Tensor) -> Any:
        """The squared error over the target's own square: of the rows of text, and of the answers
        of recall sequences (`made`, bool [rows]), each by its part of the rows."""
        device = call.output.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.mixed_precision):
            answer = call.repeat(self.mixer).float()
        target = call.output.float()
        total: Any = 0.0
        made = made.to(device)
        for rows, places in ((~made, slice(None)), (made, self.asked)):
            wanted = target[rows][:, places]
            if len(wanted):
                error = (answer[rows][:, places] - wanted).square().mean()
                size = wanted.square().mean().clamp_min(1e-30)
                total = total + error / size * (len(wanted) / len(target))
        return total

    def step(self, call: MixerCall, made: Tensor, tokens: int) -> float:
        """One step, unless it was decided to stop."""
        if self.stopped:
            return float(self.curve[-1]["loss"])
        loss = self._error(call, made)
        if not bool(loss.isfinite()):
            raise StatetrimError(
                f"the loss of layer {self.layer} is not a number; lower the learning rate"
            )
        rate = self.schedule.get_last_lr()[0]
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        line = {"layer": self.layer, "step": len(self.curve) + 1, "tokens": tokens}
        self.curve.append(line | {"loss": float(loss.detach()), "learning_rate": rate})
        if self.held_out is not None and due(len(self.curve), self.steps):
            self._check(tokens)
        return float(loss.detach())

    def save(self, target: Path) -> None:
        """What was learned, and all that is needed to write it back; then the mixer is let go."""
        values = {
            f"{self.name}.{leaf}": value.detach().cpu().contiguous()
            for leaf, value in self.trained.items()
        }
        about = {
            "curve": self.curve,
            "held_out": self.checks,
            "updates": [(u.stored, u.parameters, u.scale) for u in self.adapters.updates],
            "coverage": self.adapters.coverage.as_json(),
        }
        save_tensors(target, values, {name: json.dumps(value) for name, value in about.items()})
        self.mixer.to("meta")
