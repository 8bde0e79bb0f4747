"""Student checkpoint + teacher + text -> the student after recovery training.

The result has the student's files with the trained tensors replaced; everything else is copied byte
for byte. It is written in `OUT.partial`, where the training state is saved too.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial as bound
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..artifacts.card.model_card import recovered_card
from ..artifacts.record import header
from ..artifacts.steps import write_all_but_weights
from ..errors import StatetrimError, errors_of
from ..options import as_record, takes_options
from ..progress import OnProgress, progress_reporter
from ..runtime.loading import load_live
from ..runtime.placement import default_device
from ..storage.atomic import atomic_write, remove
from ..storage.auxiliary_files import is_newer
from ..storage.checkpoint import Checkpoint, open_checkpoint, require_prunable
from ..storage.json_file import read_json
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import (
    ARTIFACTS,
    MAX_RECORD_BYTES,
    Output,
    already_done,
    open_output,
    partial_path,
)
from ..storage.safetensors_file import patch_shard
from ..storage.space import check_space, check_writable
from ..version import __version__
from .adapters import Adapters, TrainingResult, attach_adapters, checkpoint_activations
from .data import TrainingRows, load_training_rows
from .fsdp import Sharder, check_launch
from .options import RecoverOptions, RecoverRunOptions

logger = logging.getLogger("statetrim")

RECORD = "recover.json"
TRAINING = "training"  # the directory in OUT.partial of the training state and trackers' files
STATE_PATTERNS = ("checkpoint-*", "hidden-*", "layer-*")  # the training state in TRAINING


@takes_options(RecoverRunOptions)
def recover(student: ModelLike, options: RecoverRunOptions) -> Checkpoint:
    """Train `student` on `text`, and write the merged checkpoint to `out`.

    The loss is cross-entropy + temperature² KL(teacher || student); without a `teacher`,
    cross-entropy only. The same call resumes after an interruption.
    """
    teacher = None if options.teacher is None else as_checkpoint(options.teacher)
    if options.control:
        if teacher is None:
            raise StatetrimError("a control run trains the original model: give it as --teacher")
        student = teacher
    student = as_checkpoint(student)
    if student.quantized:
        raise StatetrimError(
            f"{student.path} is quantised, and what is learned would be lost in rounding; recover "
            f"the cut of the unquantised model, then quantise the result"
        )
    _check_options(options, student, teacher)
    check_writable(options.out)
    data = load_training_rows(student, teacher, options.text, options)
    record = {
        **header("recover"),
        "statetrim": __version__,
        "student": student.digest,
        "teacher": teacher.digest if teacher else None,
        "weights": [model.digest for model in (student, teacher) if model is not None],
        "control": options.control,
        "data": {name: value for name, value in data.lineage.items() if name != "text"},
        "options": options.result_options,
    }
    out = Path(options.out)
    if already_done(out, RECORD, record):
        return open_checkpoint(out, student.family)
    with progress_reporter(options.progress, "recovering") as report:
        _RecoveryRun(student, teacher, data, options, record, out, report).run()
    return open_checkpoint(out, student.family)


@dataclass
class _RecoveryRun:
    """One recovery, whose result is published as `out`."""

    student: Checkpoint
    teacher: Checkpoint | None
    data: TrainingRows
    options: RecoverRunOptions
    record: dict[str, Any]
    out: Path
    progress: OnProgress

    @property
    def partial(self) -> Path:
        """`OUT.partial`; all processes write there, and rank 0 holds its lock."""
        return partial_path(self.out)

    def run(self) -> None:
        """Train, in all launched processes, and publish `out`."""
        args = None
        if not self.options.layerwise:
            from .trainer import training_arguments

            steps = len(self.data.ids) // self.options.batch_size
            args = training_arguments(self.partial / TRAINING, self.options, steps)
            _set_batch_sizes(args, self.options.batch_size, self.options.micro_batch)
        is_main = args is None or args.process_index == 0
        with ExitStack() as stack:
            partial_output = None
            if is_main:
                partial_output = stack.enter_context(open_output(self.out, RECORD, self.record))
                if not partial_output.done:
                    nbytes = sum(shard.path.stat().st_size for shard in self.student.shards)
                    check_space(partial_output.path, nbytes)
            _barrier()
            if already_done(self.out, RECORD, self.record):  # published by another run meanwhile
                return
            stored = read_json(self.partial / ARTIFACTS / RECORD, MAX_RECORD_BYTES)
            _barrier()  # rank 0 must not rename the directory while another process reads it
            if "curve" not in stored:  # else an earlier run has written the checkpoint
                result = self._train_layerwise() if args is None else self._train(args)
                if is_main:
                    self._write_checkpoint(result)
            if partial_output is not None:
                self._publish(partial_output)
            _barrier()

    def _train(self, args: Any) -> TrainingResult:
        from .trainer import RecoveryTrainer, list_checkpoints

        model, adapters = self._build_distillation(args.device)
        kinds = (ImportError, RuntimeError, ValueError) if args.report_to else ()
        with errors_of("the run cannot be reported as asked", kinds=kinds):
            trainer = RecoveryTrainer(model, args, self.data, self.options, self.progress)
        if args.process_index == 0:
            logger.info("training %s", adapters.coverage)
        saved_states = list_checkpoints(self.partial / TRAINING)
        trainer.train(resume_from_checkpoint=str(saved_states[-1]) if saved_states else None)
        trained = trainer.gather_trained()
        return TrainingResult(adapters, trained, trainer.curve)

    def _train_layerwise(self) -> TrainingResult:
        from .mixer_repair import LayerwiseRecovery

        assert self.teacher is not None
        directory = self.partial / TRAINING
        training = LayerwiseRecovery(self.student, self.teacher, directory, self.options)
        result = training.run(self.data, self.progress)
        logger.info("trained %s", result.adapters.coverage)
        return result

    def _build_distillation(self, device: torch.device) -> tuple[Any, Adapters]:
        """Load student and teacher: the model that returns the loss, and what it trains."""
        from .distillation import Distillation, checked_logit_head

        options = self.options
        placement = replace(options.placement, device=device, layerwise=options.shard)
        student = load_live(self.student, placement)
        student.check_ids(self.data.ids)
        sharder = Sharder(student.device) if options.shard else None
        torch.manual_seed(options.seed)  # for LoRA's initial values
        layer_context = nullcontext if sharder is None else bound(sharder.shard_layer, student)
        adapters = attach_adapters(student, options, layer_context)
        if options.gradient_checkpointing:
            checkpoint_activations(student.module)
        if sharder is not None:
            sharder.shard_remaining(student)
        head = checked_logit_head(student)
        teacher = teacher_head = None
        if self.teacher is not None:
            teacher = load_live(self.teacher, placement)
            teacher.module.requires_grad_(False)
            if sharder is not None:
                sharder.shard_model(teacher)
            teacher_head = checked_logit_head(teacher)
            if len(teacher_head.weight) != len(head.weight):
                raise StatetrimError(
                    f"the teacher has {len(teacher_head.weight)} logits and the student "
                    f"{len(head.weight)}; they must share a vocabulary"
                )
        eval_modules: tuple[Any, ...] = ()
        if self.student.family.fused_training:
            eval_modules = tuple(student.mixers.values())
        model = Distillation(
            student.module,
            head,
            None if teacher is None else teacher.module,
            teacher_head,
            options.temperature,
            eval_modules,
            None if self.data.recall is None else self.data.recall.answer_positions,
        )
        return model, adapters

    def _write_checkpoint(self, result: TrainingResult) -> None:
        """Write the student's files to `OUT.partial` with the trained tensors replaced; shards that
        a killed run wrote are kept. The record comes last: with it the checkpoint is complete."""
        replacements: dict[str, Callable[[Tensor], Tensor]] = {}
        for update in result.adapters.updates:
            replacements |= update.replacements(self.student, result.trained)
        for source in self.student.shards:
            target = self.partial / source.path.name
            if not target.exists() or is_newer(source.path, target):
                with atomic_write(target) as scratch, scratch.open("xb") as file:
                    patch_shard(source, file, replacements, lambda count: None)
        finished_record = self.record | {
            "recipe": as_record(self.options),
            "text": str(self.data.lineage.get("text")),
            "trained_tensors": sorted(replacements),
            "coverage": asdict(result.adapters.coverage),
            "curve": result.curve,
            **({"held_out": result.held_out} if result.held_out else {}),
        }
        write_all_but_weights(self.student, self.partial, RECORD, finished_record, recovered_card)

    def _publish(self, partial_output: Output) -> None:
        """Delete the training state, keep files that trackers wrote, and rename `OUT.partial`."""
        training = self.partial / TRAINING
        if training.is_dir():
            for pattern in STATE_PATTERNS:
                for path in training.glob(pattern):
                    remove(path)
            if any(training.iterdir()):
                training.rename(self.partial / ARTIFACTS / TRAINING)
            else:
                training.rmdir()
        partial_output.publish()


def _check_options(
    options: RecoverOptions, student: Checkpoint, teacher: Checkpoint | None
) -> None:
    """Raise StatetrimError for options that contradict the models or the launch."""
    require_prunable(student)
    if teacher is not None:
        require_prunable(teacher)
    largest = max(max(info.shape, default=1) for _, info in student.tensors.values())
    if options.rank > largest:
        raise StatetrimError(
            f"LoRA of rank {options.rank} is larger than any matrix of the model; take at most "
            f"{largest}, usually 8 to 64"
        )
    single_process = not dist.is_torchelastic_launched()
    if options.layerwise and (teacher is None or options.shard or not single_process):
        raise StatetrimError("layerwise recovery needs a teacher, and runs in one process")
    placement = options.placement
    if not options.layerwise and placement.input_device not in (
        torch.device("cpu"),
        default_device(),
    ):
        raise StatetrimError(
            f"the whole model trains on the first GPU that it sees; instead of --device "
            f"{options.device} set CUDA_VISIBLE_DEVICES={placement.input_device.index}"
        )
    check_launch(options.shard)


def _set_batch_sizes(args: Any, batch_size: int, micro_batch: int | None) -> None:
    args._n_gpu = min(1, args.n_gpu)  # one GPU per process: no DataParallel
    micro = micro_batch or batch_size // args.world_size
    if micro < 1 or batch_size % (micro * args.world_size):
        raise StatetrimError(
            f"a batch of {batch_size} sequences cannot be shared by {args.world_size} processes "
            f"that each run {max(micro, 1)} at a time"
        )
    args.per_device_train_batch_size = micro
    args.gradient_accumulation_steps = batch_size // (micro * args.world_size)


def _barrier() -> None:
    """Wait for the other processes of a launch; without one, do nothing."""
    if dist.is_initialized():
        dist.barrier()
