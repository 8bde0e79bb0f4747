"""Layerwise recovery: train one mixer at a time to give the teacher's output on its input.

The teacher runs layer by layer: all text passes one decoder layer before the next. Between layers
the hidden states are on disk; in memory are one decoder layer of the teacher and one mixer of the
student. An interrupted layer is trained again from its beginning.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import StatetrimError
from ..progress import OnProgress, Progress
from ..runtime.live import MixerCall, hook_mixers
from ..runtime.loading import load_live
from ..runtime.sequential import LayerWalk
from ..storage.checkpoint import Checkpoint
from ..storage.safetensors_file import save_tensors
from .adapters import Adapters, TrainingResult, Update, adapt_mixer, select_mixers
from .data import Batch, RecallRows, TrainingRows
from .options import FINAL_RATE, RecoverOptions, is_check_due, warm_up_steps


class LayerwiseRecovery:
    """Trains the mixers of `student`; hidden states and finished layers are in `directory`."""

    def __init__(
        self, student: Checkpoint, teacher: Checkpoint, directory: Path, options: RecoverOptions
    ) -> None:
        self.checkpoint, self.directory, self.options = student, directory, options
        placement = replace(options.placement, layerwise=True)
        self.student = load_live(student, placement)
        self.teacher = load_live(teacher, placement)
        self.student.module.requires_grad_(False)
        if set(self.student.mixers) != set(self.teacher.mixers):
            raise StatetrimError("teacher and student have linear attention in different layers")
        self.mixers = select_mixers(self.student, options.layers)

    def run(self, data: TrainingRows, progress: OnProgress) -> TrainingResult:
        """Train the mixers of the chosen layers, from the layer in which an earlier run stopped.
        The held-out rows pass the teacher as one more batch, the last."""
        batches = data.batches(self.options.batch_size)
        inputs = [ids for ids, _ in batches]
        if data.recall is not None:
            inputs.append(data.recall.held_out.long())
        for ids in inputs:
            self.student.check_ids(ids)
        walk = LayerWalk(self.teacher, inputs, self.directory)
        for number in walk.layers(max(self.mixers) + 1):
            if number in self.mixers:
                self._repair_layer(walk, batches, data.recall, progress)
            else:
                for step in range(len(inputs)):
                    walk.run_batch(step)
        return self._load_result()

    def _repair_layer(
        self,
        walk: LayerWalk,
        batches: list[Batch],
        recall: RecallRows | None,
        progress: OnProgress,
    ) -> None:
        """Run the teacher's layer on all batches, and train the student's mixer on each."""
        number, tokens, calls = walk.layer, 0, list[MixerCall]()
        training = self._start_training(number, len(batches), recall)
        with hook_mixers({number: self.teacher.mixers[number]}, calls.append):
            if recall is not None:
                walk.run_batch(len(batches))
                training.held_out_call = calls.pop()
                training.measure_held_out(0)
            for step, (ids, is_recall) in enumerate(batches):
                walk.run_batch(step)
                tokens += ids.numel()
                loss = training.step(calls.pop(), is_recall, tokens)
                label = f"layer {number}"
                progress(Progress(step + 1, len(batches), "steps", label, loss))
        training.save(self.directory / f"layer-{number}.safetensors")

    def _start_training(
        self, number: int, steps: int, recall: RecallRows | None
    ) -> "_MixerTraining":
        """Load the student's mixer of a layer, and make it trainable; seeds torch's generator."""
        mixer = self.mixers[number]
        name = next(name for name, module in self.student.module.named_modules() if module is mixer)
        assert self.student.weights is not None
        self.student.weights.load_permanently(mixer)
        torch.manual_seed(self.options.seed * 100_003 + number)  # so that a resume draws the same
        adapters = Adapters()
        adapt_mixer(mixer, name, self.checkpoint, adapters, self.options)
        answer_positions = None if recall is None else recall.answer_positions
        return _MixerTraining(number, name, mixer, adapters, self.options, steps, answer_positions)

    def _load_result(self) -> TrainingResult:
        """The result from the files of all layers, which earlier runs may have written."""
        result = TrainingResult(Adapters(), {}, [])
        coverage = result.adapters.coverage
        for number in sorted(self.mixers):
            path = self.directory / f"layer-{number}.safetensors"
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata()
                result.trained |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            result.curve += json.loads(metadata["curve"])
            result.held_out += json.loads(metadata["held_out"])
            for stored, parameters, scale in json.loads(metadata["updates"]):
                result.adapters.updates.append(Update(tuple(stored), tuple(parameters), scale))
            layer_coverage = json.loads(metadata["coverage"])
            for name in ("layers", "projections", "convolutions"):
                setattr(coverage, name, getattr(coverage, name) + layer_coverage[name])
        coverage.trained_parameters = sum(value.numel() for value in result.trained.values())
        coverage.all_parameters = self.checkpoint.parameters
        return result


class _MixerTraining:
    def __init__(
        self,
        layer: int,
        name: str,
        mixer: nn.Module,
        adapters: Adapters,
        options: RecoverOptions,
        steps: int,
        answer_positions: Tensor | None,
    ) -> None:
        from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

        self.layer, self.name, self.mixer, self.adapters = layer, name, mixer, adapters
        self.mixed_precision = options.mixed_precision
        self.steps, self.answer_positions = steps, answer_positions
        self.trained = {n: p for n, p in mixer.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=options.learning_rate, weight_decay=0.0
        )
        self.schedule = get_cosine_with_min_lr_schedule_with_warmup(
            self.optimizer,
            num_warmup_steps=warm_up_steps(steps),
            num_training_steps=steps,
            min_lr_rate=FINAL_RATE,
        )
        self.curve: list[dict[str, Any]] = []
        self.held_out_curve: list[dict[str, Any]] = []
        self.held_out_call: MixerCall | None = None

    def measure_held_out(self, tokens: int) -> None:
        """Append the error on the held-out call."""
        assert self.held_out_call is not None
        all_recall = torch.ones(len(self.held_out_call.output), dtype=torch.bool)
        with torch.no_grad():
            error = float(self._relative_error(self.held_out_call, all_recall))
        self.held_out_curve.append({"layer": self.layer, "tokens": tokens, "recall_error": error})

    def _relative_error(self, call: MixerCall, is_recall: Tensor) -> Any:
        """Mean squared error relative to the target's mean square, a scalar tensor: of all
        positions of text, and of the answers of recall sequences (`is_recall`, bool [rows]); the
        two are averaged by their numbers of rows."""
        device = call.output.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.mixed_precision):
            student_output = call.repeat(self.mixer).float()
        target = call.output.float()
        total: Any = 0.0
        is_recall = is_recall.to(device)
        for rows, positions in ((~is_recall, slice(None)), (is_recall, self.answer_positions)):
            expected = target[rows][:, positions]
            if len(expected):
                error = (student_output[rows][:, positions] - expected).square().mean()
                scale = expected.square().mean().clamp_min(1e-30)
                total = total + error / scale * (len(expected) / len(target))
        return total

    def step(self, call: MixerCall, is_recall: Tensor, tokens: int) -> float:
        """Train on one call of the teacher's mixer and return the loss before it."""
        loss = self._relative_error(call, is_recall)
        if not bool(loss.isfinite()):
            raise StatetrimError(
                f"the loss of layer {self.layer} is not a number; lower the learning rate"
            )
        learning_rate = self.schedule.get_last_lr()[0]
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        progress = {"layer": self.layer, "step": len(self.curve) + 1, "tokens": tokens}
        self.curve.append(progress | {"loss": float(loss.detach()), "learning_rate": learning_rate})
        if self.held_out_call is not None and is_check_due(len(self.curve), self.steps):
            self.measure_held_out(tokens)
        return float(loss.detach())

    def save(self, target: Path) -> None:
        """Save the trained tensors, with metadata to write them back; then free the mixer."""
        tensors = {}
        for leaf, value in self.trained.items():
            tensors[f"{self.name}.{leaf}"] = value.detach().cpu().contiguous()
        updates = [(u.stored, u.parameters, u.scale) for u in self.adapters.updates]
        metadata = {
            "curve": json.dumps(self.curve),
            "held_out": json.dumps(self.held_out_curve),
            "updates": json.dumps(updates),
            "coverage": json.dumps(asdict(self.adapters.coverage)),
        }
        save_tensors(target, tensors, metadata)
        self.mixer.to("meta")
