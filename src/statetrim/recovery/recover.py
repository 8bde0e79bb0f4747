"""Checkpoint + teacher + text -> a checkpoint that learned to do with its smaller state.

The result is the input's files with the trained tensors replaced; everything else is copied byte
for byte. It grows in `OUT.partial`, where the training state is kept too.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial as bound
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from ..artifacts.card.model_card import recovered_card
from ..artifacts.header import header
from ..errors import StatetrimError, check_option_names, warn_deprecated_resume
from ..progress import OnProgress, ShowProgress, progress_reporter
from ..runtime.loading import load_live
from ..runtime.placement import Placement, own_device
from ..storage.atomic import replacing
from ..storage.checkpoint import Checkpoint, open_checkpoint, with_weights
from ..storage.companions import copy_unchanged, newer
from ..storage.json_file import read_object, write_object, write_text
from ..storage.models import ModelLike, opened
from ..storage.output import (
    ARTIFACTS,
    CARD,
    MOST_RECORD_BYTES,
    Output,
    already_done,
    output,
    partial_of,
)
from ..storage.safetensors_file import patch_shard
from ..storage.space import check_space, check_writable
from ..storage.text import Sequences
from ..version import __version__
from .adapters import Adapters, Coverage, attach, refuse_unknown_groups
from .data import TrainingRows, training_rows
from .fsdp import Sharder, refuse_unmet_requests
from .options import RecoverFields, RecoverOptions

RECORD = "recover.json"
TRAINING = "training"  # the directory of the training state in OUT.partial
OURS = ("checkpoint-*", "hidden-*", "layer-*")  # in there; the rest is a tracker's


def recover(
    small: ModelLike,
    options: RecoverOptions | None = None,
    *,
    teacher: ModelLike | None = None,
    text: str | Path | Sequences,
    out: str | Path,
    resume: bool = False,
    announce: Callable[[Coverage], None] = lambda coverage: None,
    progress: ShowProgress = True,
    **changes: Unpack[RecoverFields],
) -> Checkpoint:
    """Train `small` on `text`, and write the merged checkpoint to `out`.

    The loss is cross-entropy + temperature² KL(teacher || small); without a `teacher`,
    cross-entropy only. Give `options` as an object, by name (`rank=8`), or both; names take
    precedence. The same call resumes after an interruption (`resume` is deprecated).
    """
    warn_deprecated_resume(resume)
    check_option_names("recover", changes, [field.name for field in fields(RecoverOptions)])
    options = replace(options or RecoverOptions(), **changes)
    teacher = None if teacher is None else opened(teacher)
    if options.control:
        if teacher is None:
            raise StatetrimError("a control run trains the original model: give it as --teacher")
        small = teacher
    small = opened(small)
    _check(options, small, teacher)
    check_writable(out)
    data = training_rows(small, teacher, text, options)
    record = {
        **header("recover"),
        "statetrim": __version__,
        "student": small.digest,
        "teacher": teacher.digest if teacher else None,
        "weights": [model.digest for model in (small, teacher) if model is not None],
        "control": options.control,
        "data": {name: value for name, value in data.lineage.items() if name != "text"},
        "options": options.deciding,
    }
    out = Path(out)
    if already_done(out, RECORD, record):
        return open_checkpoint(out, small.family)
    with progress_reporter(progress, "recovering") as report:
        job = _Job(small, teacher, data, options, record, out, announce, report)
        if options.layerwise:
            job.alone()
        else:
            job.together()
    return open_checkpoint(out, small.family)


@dataclass
class _Job:
    """One run, whose result will be `out`."""

    student: Checkpoint
    teacher: Checkpoint | None
    data: TrainingRows
    options: RecoverOptions
    record: dict[str, Any]
    out: Path
    announce: Callable[[Coverage], None]
    progress: OnProgress

    @property
    def partial(self) -> Path:
        """Where the result grows; all processes write there, one of them holds its lock."""
        return partial_of(self.out)

    def together(self) -> None:
        """The whole model at once, in as many processes as were started."""
        from . import trainer as training

        options, steps = self.options, len(self.data.ids) // self.options.batch_size
        args = training.arguments(
            self.partial / TRAINING,
            learning_rate=options.learning_rate,
            last_learning_rate=options.lowest_learning_rate,
            warm_up=options.warm_up,
            steps=steps,
            save_every=options.save_every,
            seed=options.seed,
            mixed_precision=options.mixed_precision,
            report_to=list(options.report_to),
            on_cpu=options.device == "cpu",
        )
        _share_batch(args, options.batch_size, options.micro_batch)
        lead = args.process_index == 0
        with ExitStack() as stack:
            work = stack.enter_context(self._place()) if lead else None
            _wait()
            if already_done(self.out, RECORD, self.record):  # by another process, just now
                return
            finished = self._finished()
            _wait()  # nobody renames it while another still reads
            if not finished:
                model, adapters = self._live(args.device)
                trainer = training.trainer(
                    model,
                    args,
                    self.data,
                    sharded=options.shard,
                    patience=options.patience,
                    progress=self.progress,
                )
                if lead:
                    self.announce(adapters.coverage)
                saved = training.checkpoints(self.partial / TRAINING)
                trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)
                trained = trainer.trained()
                if lead:
                    self.write(adapters, trained, trainer.curve, trainer.held_out)
            if work is not None:
                self._publish(work)
            _wait()

    def alone(self) -> None:
        """One mixer after the other, in one process."""
        from .mixer_repair import Layerwise, Recipe

        assert self.teacher is not None
        options = self.options
        recipe = Recipe(
            rank=options.rank,
            alpha=options.alpha,
            learning_rate=options.learning_rate,
            last_learning_rate=options.lowest_learning_rate,
            warm_up=options.warm_up,
            mixed_precision=options.mixed_precision,
            seed=options.seed,
            layers=tuple(options.layers),
            whole=options.whole,
            patience=options.patience,
        )
        with self._place() as work:
            if work.done:
                return
            if not self._finished():
                directory = self.partial / TRAINING
                place = Placement(options.device, dtype=options.dtype, layerwise=True)
                job = Layerwise(self.student, self.teacher, directory, recipe, place)
                result = job.run(self.data, options.batch_size, self.progress)
                self.announce(result.adapters.coverage)
                self.write(result.adapters, result.trained, result.curve, result.held_out)
            self._publish(work)

    @contextmanager
    def _place(self) -> Iterator[Output]:
        with output(self.out, RECORD, self.record) as work:
            if not work.done:
                size = sum(shard.path.stat().st_size for shard in self.student.shards)
                check_space(work.path, size)
            yield work

    def _live(self, device: torch.device) -> tuple[Any, Adapters]:
        """Student and teacher with their loss, and what is trained of the student."""
        from .distillation import Distillation
        from .logit_head import head_of

        options = self.options
        place = Placement(device, dtype=options.dtype, layerwise=options.shard)
        student = load_live(self.student, place)
        student.check_ids(self.data.ids)
        sharder = Sharder(student.device) if options.shard else None
        torch.manual_seed(options.seed)  # of LoRA's first values
        adapters = attach(
            student,
            rank=options.rank,
            alpha=options.alpha,
            also=options.also,
            layers=options.layers,
            whole=options.whole,
            around=None if sharder is None else bound(sharder.layer, student),
        )
        if options.gradient_checkpointing:
            student.module.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        if sharder is not None:
            sharder.rest(student)
        head = head_of(student)
        teacher = teacher_head = None
        if self.teacher is not None:
            teacher = load_live(self.teacher, place)
            teacher.module.requires_grad_(False)
            if sharder is not None:
                sharder.split(teacher)
            teacher_head = head_of(teacher)
            if len(teacher_head.weight) != len(head.weight):
                raise StatetrimError(
                    f"the teacher has {len(teacher_head.weight)} logits and the student "
                    f"{len(head.weight)}; they must share a vocabulary"
                )
        frozen_mode: tuple[Any, ...] = ()
        if self.student.family.fused_training:
            frozen_mode = tuple(student.mixers.values())
        model = Distillation(
            student.module,
            head,
            None if teacher is None else teacher.module,
            teacher_head,
            options.temperature,
            frozen_mode,
            None if self.data.recall is None else self.data.recall.asked,
        )
        return model, adapters

    def _finished(self) -> bool:
        """Whether only the last step, the new name, is missing."""
        return "curve" in read_object(self.partial / ARTIFACTS / RECORD, MOST_RECORD_BYTES)

    def write(
        self,
        adapters: Adapters,
        trained: Mapping[str, Tensor],
        curve: list[dict[str, Any]],
        held_out: list[dict[str, Any]],
    ) -> None:
        """The checkpoint's files with the trained tensors replaced; the record last."""
        replacements: dict[str, Callable[[Tensor], Tensor]] = {}
        for update in adapters.updates:
            replacements |= update.replacements(self.student, trained)
        for source in self.student.shards:
            target = self.partial / source.path.name
            if not target.exists() or newer(source.path, target):
                with replacing(target) as scratch, scratch.open("xb") as file:
                    patch_shard(source, file, replacements, lambda count: None)
        done = self.record | {
            "recipe": asdict(self.options),
            "text": str(self.data.lineage.get("text")),
            "trained_tensors": sorted(replacements),
            "coverage": adapters.coverage.as_json(),
            "curve": curve,
            **({"held_out": held_out} if held_out else {}),
        }
        original = copy_unchanged(self.student, self.partial, RECORD)
        name = self.student.path.resolve().name
        write_text(self.partial / CARD, recovered_card(original, name, done))
        result = with_weights(open_checkpoint(self.partial, self.student.family))
        assert result.geometry == self.student.geometry
        assert [s.tensors for s in result.shards] == [s.tensors for s in self.student.shards]
        write_object(self.partial / ARTIFACTS / RECORD, done)

    def _publish(self, work: Output) -> None:
        """The name that was asked for; of the training state only what a tracker wrote stays."""
        training = self.partial / TRAINING
        for pattern in OURS if training.is_dir() else ():
            for path in training.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        if training.is_dir():
            if any(training.iterdir()):
                training.rename(self.partial / ARTIFACTS / TRAINING)
            else:
                training.rmdir()
        work.publish()


def _check(options: RecoverOptions, small: Checkpoint, teacher: Checkpoint | None) -> None:
    with_weights(small)
    if teacher is not None:
        with_weights(teacher)
    if min(options.rank, options.batch_size, options.length) < 1 or not options.alpha > 0:
        raise StatetrimError("rank, alpha, batch size and length must be positive")
    if not 0 <= options.seed < 2**32:
        raise StatetrimError(f"a seed must be between 0 and {2**32 - 1}, not {options.seed}")
    most = max(max(info.shape, default=1) for _, info in small.tensors.values())
    if options.rank > most:
        raise StatetrimError(
            f"LoRA of rank {options.rank} is larger than any matrix of the model; take at most "
            f"{most}, usually 8 to 64"
        )
    if not 0 < options.lowest_learning_rate <= options.learning_rate < 1:
        raise StatetrimError(
            f"the learning rate must fall from below 1 to above 0, not from "
            f"{options.learning_rate} to {options.lowest_learning_rate}"
        )
    if not options.temperature > 0 or not 0 <= options.warm_up < 1:
        raise StatetrimError("the temperature must be positive and the warm-up a part of all steps")
    if not 0 <= options.recall < 1:
        raise StatetrimError(
            f"recall must be a fraction of the tokens, from 0 to below 1, not {options.recall:g}"
        )
    if options.patience < 0 or (options.patience and not options.recall):
        raise StatetrimError(
            "patience is a number of checks of held-out recall; give --recall with it, or 0"
        )
    alone = not dist.is_torchelastic_launched()
    if options.layerwise and (teacher is None or options.shard or options.also or not alone):
        raise StatetrimError(
            "layerwise recovery needs a teacher, repairs linear-attention layers only, and runs in "
            "one process"
        )
    place = Placement(options.device, dtype=options.dtype)
    if not options.layerwise and place.home not in (torch.device("cpu"), own_device()):
        raise StatetrimError(
            f"the whole model trains on the first GPU that it sees; instead of --device "
            f"{options.device} set CUDA_VISIBLE_DEVICES={place.home.index}"
        )
    refuse_unknown_groups(options.also)
    refuse_unmet_requests(options.shard)


def _share_batch(args: Any, batch_size: int, micro_batch: int | None) -> None:
    """Give every process its part of a batch, in passes of `micro_batch` sequences."""
    args._n_gpu = min(1, args.n_gpu)  # several GPUs are for several processes
    micro = micro_batch or batch_size // args.world_size
    if micro < 1 or batch_size % (micro * args.world_size):
        raise StatetrimError(
            f"a batch of {batch_size} sequences cannot be shared by {args.world_size} processes "
            f"that each run {max(micro, 1)} at a time"
        )
    args.per_device_train_batch_size = micro
    args.gradient_accumulation_steps = batch_size // (micro * args.world_size)


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()
