"""transformers' Trainer for recovery, with checkpoints of safetensors and JSON instead of pickle.

A checkpoint is a directory that is renamed into place when it is complete. Its content does not
depend on the number of processes.
"""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from ..errors import StatetrimError, errors_of
from ..maths.units import MIB
from ..progress import OnProgress, Progress
from ..storage.atomic import atomic_write, sync
from ..storage.json_file import read_json
from ..storage.safetensors_file import write_tensors_in_place
from .data import TrainingRows
from .distillation import Distillation
from .fsdp import check_sharded, gather_full, shard_like
from .options import FINAL_RATE, RecoverOptions, warm_up_steps

STATE_FILE = "trainer_state.json"  # the name that the Trainer expects
TENSORS_FILE = "training.safetensors"
SCHEDULE_FILE = "schedule.json"


def training_arguments(directory: Path, options: RecoverOptions, steps: int) -> TrainingArguments:
    """The Trainer's arguments, except batch sizes; in a launch they start torch.distributed."""
    use_cpu = options.device == "cpu" or not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(directory),
        optim="adamw_torch",
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": FINAL_RATE},
        warmup_steps=warm_up_steps(steps),
        max_steps=steps,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=options.save_every,
        seed=options.seed,
        train_sampling_strategy="sequential",
        bf16=options.mixed_precision,
        use_cpu=use_cpu,
        ddp_backend="gloo" if use_cpu and dist.is_torchelastic_launched() else None,
        ddp_find_unused_parameters=False,
        ddp_timeout=4 * 3600,  # the other processes wait while rank 0 writes the result
        report_to=list(options.report_to),
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=not use_cpu,
    )


class RecoveryTrainer(Trainer):  # type: ignore[misc]
    """Logs the parts of the loss too, and writes its own checkpoints."""

    def __init__(
        self,
        model: Distillation,
        args: TrainingArguments,
        data: TrainingRows,
        options: RecoverOptions,
        progress: OnProgress,
    ) -> None:
        rows = [{"input_ids": ids} for ids in data.ids]
        if data.recall is not None:
            for row, is_recall in zip(rows, data.recall.is_recall, strict=True):
                row["is_recall"] = is_recall
        super().__init__(
            model=model,
            args=args,
            train_dataset=rows,
            data_collator=default_data_collator,
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False
        self.loss_is_scaled_for_ga = False  # all micro-batches have the same number of tokens
        # No DDP wrapper if sharded: FSDP2 reduces the gradients.
        self.is_distributed_loading_by_transformers = options.shard
        rows_per_pass = args.per_device_train_batch_size * args.world_size
        rows_per_step = rows_per_pass * args.gradient_accumulation_steps
        self.tokens_per_step: int = rows_per_step * data.ids.shape[1]
        # Since the last log, for text and recall: rows, cross-entropy, KL.
        self.loss_sums = torch.zeros(2, 3, dtype=torch.float64, device=args.device)
        self.has_recall = data.recall is not None
        self.progress = progress
        self.add_callback(_GradientCheck(options.shard))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        output = model(**inputs)
        self.loss_sums += output["sums"]
        return (output["loss"], output) if return_outputs else output["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the parts of the loss, means per row over all processes, to a step's `logs`."""
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                raise StatetrimError(
                    f"the loss of step {self.state.global_step} is not a number; lower the "
                    f"learning rate, or look at the text"
                )
            sums = self.accelerator.reduce(self.loss_sums.float(), reduction="sum").cpu()
            rows, cross_entropy, divergence = sums.sum(0).tolist()
            logs |= {"ce": cross_entropy / rows, "kl": divergence / rows}
            for name, (rows, cross_entropy, divergence) in zip(
                ("text", "recall"), sums.tolist(), strict=True
            ):
                if rows and self.has_recall:
                    logs |= {f"{name}_ce": cross_entropy / rows, f"{name}_kl": divergence / rows}
            logs["tokens"] = self.state.global_step * self.tokens_per_step
            self.loss_sums.zero_()
            if self.is_world_process_zero():
                done, steps = self.state.global_step, self.state.max_steps
                self.progress(Progress(done, steps, "steps", loss=logs["loss"]))
        super().log(logs, start_time)

    @property
    def curve(self) -> list[dict[str, float]]:
        """For each step its number, tokens so far, learning rate, losses and their parts."""
        sources = ("text_ce", "text_kl", "recall_ce", "recall_kl")
        names = ("step", "tokens", "loss", "ce", "kl", *sources, "learning_rate")
        steps = [logs for logs in self.state.log_history if "loss" in logs]
        return [{name: logs[name] for name in names if name in logs} for logs in steps]

    def gather_trained(self) -> dict[str, Tensor]:
        """Name in the student -> trained tensor, in full and on the CPU; collective."""
        student = self.accelerator.unwrap_model(self.model).student
        return {n: gather_full(p) for n, p in student.named_parameters() if p.requires_grad}

    # --- checkpoints -----------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write `checkpoint-STEP` in rank 0, and delete earlier ones; collective."""
        tensors = {f"parameter.{name}": value for name, value in self.gather_trained().items()}
        optimizer_state = self.optimizer.state_dict()
        for number, state in optimizer_state["state"].items():
            for name, value in state.items():
                tensors[f"optimizer.{number}.{name}"] = gather_full(value)
        device = self.args.device
        on_cuda = device.type == "cuda"  # the generators' states are for models with dropout
        state = torch.cuda.get_rng_state(device) if on_cuda else torch.get_rng_state()
        for rank, gathered in enumerate(self.accelerator.gather(state.unsqueeze(0).to(device))):
            tensors[f"random.{rank}"] = gathered.cpu()
        if self.args.should_save:
            target = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            target.parent.mkdir(parents=True, exist_ok=True)
            schedule = {
                "scheduler": self.lr_scheduler.state_dict(),
                "param_groups": optimizer_state["param_groups"],
            }
            with atomic_write(target) as scratch:
                scratch.mkdir()
                contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
                write_tensors_in_place(scratch / TENSORS_FILE, contiguous)
                (scratch / SCHEDULE_FILE).write_text(json.dumps(schedule))
                self.state.save_to_json(str(scratch / STATE_FILE))
            sync(target.parent)
            for outdated in list_checkpoints(target.parent)[:-1]:
                shutil.rmtree(outdated)
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the trained parameters only. Raises StatetrimError if they do not fit the model."""
        tensors = _load_tensors(resume_from_checkpoint)
        student = self.accelerator.unwrap_model(self.model).student
        for name, parameter in student.named_parameters():
            if parameter.requires_grad:
                value = _get_tensor(tensors, f"parameter.{name}", parameter.shape)
                with torch.no_grad():
                    parameter.copy_(shard_like(value, parameter))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        tensors = _load_tensors(checkpoint)
        schedule = read_json(Path(checkpoint) / SCHEDULE_FILE, 64 * MIB)
        parameters: list[Tensor] = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        state: dict[int, dict[str, Tensor]] = {}
        for number, parameter in enumerate(parameters):
            state[number] = {}
            for name in ("exp_avg", "exp_avg_sq"):
                moment = _get_tensor(tensors, f"optimizer.{number}.{name}", parameter.shape)
                state[number][name] = shard_like(moment, parameter)
            state[number]["step"] = _get_tensor(tensors, f"optimizer.{number}.step", ())
        self.optimizer.load_state_dict({"state": state, "param_groups": schedule["param_groups"]})
        self.lr_scheduler.load_state_dict(schedule["scheduler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = _load_tensors(checkpoint).get(f"random.{self.args.process_index}")
        if state is None:  # saved by fewer processes; only dropout uses it
            return
        if self.args.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.args.device)
        else:
            torch.set_rng_state(state)


class _GradientCheck(TrainerCallback):  # type: ignore[misc]
    """Checks before the first step that all trained parameters have gradients, and are sharded if
    they should be."""

    def __init__(self, sharded: bool) -> None:
        self.sharded, self.done = sharded, False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.done:
            return
        self.done = True
        if self.sharded:
            check_sharded(kwargs["model"])
        parameters = kwargs["model"].named_parameters()
        without_gradient = [n for n, p in parameters if p.requires_grad and p.grad is None]
        if without_gradient:
            raise StatetrimError(
                f"{len(without_gradient)} trained parameters take no part in the loss, the first "
                f"is {without_gradient[0]}; a fused kernel may read past them"
            )


def list_checkpoints(directory: Path) -> list[Path]:
    """The complete checkpoints in `directory`, oldest first."""
    matches = [p for p in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(matches, key=lambda path: int(path.name.partition("-")[2]))


def _load_tensors(checkpoint: str) -> dict[str, Tensor]:
    """All tensors of a saved training state. Raises StatetrimError if they cannot be read."""
    path = Path(checkpoint) / TENSORS_FILE
    with errors_of(f"{path} cannot be read", f"; remove {checkpoint}"):
        return load_file(path)


def _get_tensor(tensors: dict[str, Tensor], name: str, shape: Any) -> Tensor:
    """The saved tensor `name`. Raises StatetrimError if it is missing or has another shape."""
    value = tensors.get(name)
    if value is None or value.shape != torch.Size(shape):
        raise StatetrimError(f"the saved training state does not fit this model at {name!r}")
    return value
