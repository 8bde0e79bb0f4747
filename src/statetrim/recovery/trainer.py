"""The engine of recovery: transformers' Trainer, with checkpoints that hold no pickle.

The Trainer's own are torch.save files (which it reads with `weights_only`); ours are safetensors
and JSON, in a directory that gets its name when all of it is on the disk. Their content does not
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
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from ..errors import StatetrimError
from ..maths.units import MIB
from ..progress import OnProgress, Progress
from ..storage.atomic import replacing, sync_directory
from ..storage.json_file import read_object
from ..storage.safetensors_file import write_tensors
from .distillation import Distillation
from .fsdp import check_sharded, like, whole

STATE = "trainer_state.json"  # the name the Trainer looks for
TENSORS = "training.safetensors"
SCHEDULE = "schedule.json"
MOST_STATE_BYTES = 1024 * MIB


def arguments(
    directory: Path,
    *,
    learning_rate: float,
    last_learning_rate: float,
    warm_up: float,
    steps: int,
    save_every: int,
    seed: int,
    mixed_precision: bool,
    report_to: list[str],
    on_cpu: bool = False,
) -> TrainingArguments:
    """The Trainer's settings; making them joins the launch, where there is one."""
    cpu = on_cpu or not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(directory),
        optim="adamw_torch",
        learning_rate=learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr": last_learning_rate},
        warmup_steps=math.ceil(warm_up * steps),
        max_steps=steps,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=save_every,
        seed=seed,
        train_sampling_strategy="sequential",
        bf16=mixed_precision,
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and dist.is_torchelastic_launched() else None,
        ddp_find_unused_parameters=False,
        ddp_timeout=4 * 3600,  # the others wait while the first process writes the result
        report_to=report_to,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=not cpu,
    )


class RecoveryTrainer(Trainer):  # type: ignore[misc]
    """Adds the parts of the loss to the log, and writes its own checkpoints."""

    def __init__(
        self,
        model: Distillation,
        args: TrainingArguments,
        ids: Tensor,
        *,
        sharded: bool,
        progress: OnProgress,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            train_dataset=_Rows(ids),
            data_collator=lambda rows: {"input_ids": torch.stack(rows).long()},
            callbacks=[_Watch(progress, _global_batch(args) * ids.shape[1], sharded)],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False
        self.loss_is_scaled_for_ga = False  # every micro-batch has as many tokens
        # Gradients of sharded parameters are reduced by FSDP2: no DDP around them.
        self.is_distributed_loading_by_transformers = sharded
        self.tokens_per_step = _global_batch(args) * ids.shape[1]
        self.parts = torch.zeros(2, dtype=torch.float64, device=args.device)
        self.batches = 0

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        found = model(**inputs)
        self.parts += torch.stack([found["ce"], found["kl"]]).double()
        self.batches += 1
        return (found["loss"], found) if return_outputs else found["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                raise StatetrimError(
                    f"the loss of step {self.state.global_step} is not a number; lower the "
                    f"learning rate, or look at the text"
                )
            means = self.accelerator.reduce(self.parts.float() / self.batches, reduction="mean")
            logs |= {"ce": float(means[0]), "kl": float(means[1])}
            logs["tokens"] = self.state.global_step * self.tokens_per_step
            self.parts.zero_()
            self.batches = 0
        super().log(logs, start_time)

    @property
    def curve(self) -> list[dict[str, float]]:
        names = ("step", "tokens", "loss", "ce", "kl", "learning_rate")
        return [{n: line[n] for n in names} for line in self.state.log_history if "loss" in line]

    def trained(self) -> dict[str, Tensor]:
        """Every trained tensor, whole; all processes must ask."""
        student = self.accelerator.unwrap_model(self.model).student
        return {n: whole(p) for n, p in student.named_parameters() if p.requires_grad}

    # --- checkpoints -----------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        tensors = {f"parameter.{name}": value for name, value in self.trained().items()}
        saved = self.optimizer.state_dict()
        for number, state in saved["state"].items():
            for name, value in state.items():
                tensors[f"optimizer.{number}.{name}"] = whole(value)
        for rank, state in enumerate(self._random_states()):
            tensors[f"random.{rank}"] = state
        if self.args.should_save:
            target = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            target.parent.mkdir(parents=True, exist_ok=True)
            schedule = {
                "scheduler": self.lr_scheduler.state_dict(),
                "param_groups": saved["param_groups"],
            }
            with replacing(target) as scratch:
                scratch.mkdir()
                whole_tensors = {name: x.contiguous() for name, x in tensors.items()}
                write_tensors(scratch / TENSORS, whole_tensors)
                (scratch / SCHEDULE).write_text(json.dumps(schedule))
                self.state.save_to_json(str(scratch / STATE))
            sync_directory(target.parent)
            for old in checkpoints(target.parent)[:-1]:
                shutil.rmtree(old)
        self.accelerator.wait_for_everyone()

    def _random_states(self) -> Tensor:
        """One state a process: of the device that draws, in case a model has dropout."""
        cuda = self.args.device.type == "cuda"
        state = torch.cuda.get_rng_state(self.args.device) if cuda else torch.get_rng_state()
        gathered: Tensor = self.accelerator.gather(state.unsqueeze(0).to(self.args.device))
        return gathered.cpu()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        tensors = _read_tensors(resume_from_checkpoint)
        student = self.accelerator.unwrap_model(self.model).student
        for name, parameter in student.named_parameters():
            if parameter.requires_grad:
                value = _take(tensors, f"parameter.{name}", parameter.shape)
                with torch.no_grad():
                    parameter.copy_(like(value, parameter))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        tensors = _read_tensors(checkpoint)
        schedule = read_object(Path(checkpoint) / SCHEDULE, 64 * MIB)
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for number, parameter in enumerate(parameters):
            moments = {
                name: like(_take(tensors, f"optimizer.{number}.{name}", parameter.shape), parameter)
                for name in ("exp_avg", "exp_avg_sq")
            }
            state[number] = moments | {"step": _take(tensors, f"optimizer.{number}.step", ())}
        self.optimizer.load_state_dict({"state": state, "param_groups": schedule["param_groups"]})
        self.lr_scheduler.load_state_dict(schedule["scheduler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = _read_tensors(checkpoint).get(f"random.{self.args.process_index}")
        if state is None:  # of fewer processes than now; nothing draws but dropout
            return
        if self.args.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.args.device)
        else:
            torch.set_rng_state(state)


def trainer(
    model: Distillation,
    args: TrainingArguments,
    ids: Tensor,
    sharded: bool,
    progress: OnProgress,
) -> RecoveryTrainer:
    """A trainer; trackers that are unknown or not installed are the user's mistake."""
    try:
        return RecoveryTrainer(model, args, ids, sharded=sharded, progress=progress)
    except (ImportError, RuntimeError, ValueError) as error:
        if not args.report_to:
            raise
        reason = str(error).partition("\n")[0][:200]
        raise StatetrimError(f"the run cannot be reported as asked: {reason}") from None


class _Rows(torch.utils.data.Dataset[Tensor]):
    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> Tensor:
        return self.ids[row]


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Reports progress; sees before the first step that the loss reaches all that is trained."""

    def __init__(self, progress: OnProgress, tokens_per_step: int, sharded: bool) -> None:
        self.progress, self.tokens_per_step, self.sharded = progress, tokens_per_step, sharded
        self.checked = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.checked:
            self.checked = True
            if self.sharded:
                check_sharded(kwargs["model"])
            silent = [
                name
                for name, parameter in kwargs["model"].named_parameters()
                if parameter.requires_grad and parameter.grad is None
            ]
            if silent:
                raise StatetrimError(
                    f"{len(silent)} trained parameters take no part in the loss, the first is "
                    f"{silent[0]}; a fused kernel may read past them"
                )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        if logs and "loss" in logs and state.is_world_process_zero:
            tokens = state.global_step * self.tokens_per_step
            done, steps, loss = state.global_step, state.max_steps, logs["loss"]
            self.progress(Progress(done, steps, "steps", tokens=tokens, loss=loss))


def checkpoints(directory: Path) -> list[Path]:
    """The finished checkpoints, oldest first."""
    found = [p for p in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


def _global_batch(args: TrainingArguments) -> int:
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return int(batch)


def _read_tensors(checkpoint: str) -> dict[str, Tensor]:
    path = Path(checkpoint) / TENSORS
    try:
        return load_file(path)
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        raise StatetrimError(f"{path} cannot be read: {reason}; remove {checkpoint}") from None


def _take(tensors: dict[str, Tensor], name: str, shape: Any) -> Tensor:
    value = tensors.get(name)
    if value is None or value.shape != torch.Size(shape):
        raise StatetrimError(f"the saved training state does not fit this model at {name!r}")
    return value
