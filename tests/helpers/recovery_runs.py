"""Runs one recovery with DDP, with FSDP2, and interrupted and resumed; as one rank of several."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

import statetrim as st
from statetrim.recovery import trainer as training
from statetrim.recovery.fsdp import is_shard
from statetrim.runtime.stored_weights import StoredWeights

STEPS, BATCH, LENGTH = 8, 4, 24
STOP_AFTER = 5


def options(model: str, directory: Path) -> dict[str, Any]:
    """Options of `st.recover` for the text DIRECTORY/words.jsonl. One row per batch is a recall
    sequence, so only one of two ranks has it."""
    # The learning rate is ten times the default. At a hundred times, Adam's first steps would
    # turn rounding differences into full steps.
    return {
        "teacher": st.open(model), "text": directory / "words.jsonl", "batch_size": BATCH,
        "tokens": STEPS * BATCH * LENGTH, "length": LENGTH, "learning_rate": 1e-3,
        "recall": 1 / BATCH, "save_every": 2,
    }  # fmt: skip


def record(directory: Path) -> dict[str, Any]:
    """What recovery wrote about itself into a checkpoint."""
    content: dict[str, Any] = json.loads((directory / "statetrim" / "recover.json").read_text())
    return content


class Stopped(Exception):
    pass


def recoveries(model: str, small: st.Checkpoint, directory: Path) -> None:
    """Writes DIRECTORY/{ddp,fsdp,resumed}, and DIRECTORY/counts-RANK.json with the numbers of
    sharded tensors and the largest number of unsharded parameter elements during loading."""
    st.recover(small, out=directory / "ddp", **options(model, directory))

    counts: dict[str, Any] = {}
    real_trained, real_log = training.RecoveryTrainer.gather_trained, training.RecoveryTrainer.log

    def count(self: Any) -> Any:
        parameters = list(self.model.student.parameters())
        teacher = list(self.model.__dict__["teacher"].parameters())
        moments = [
            state[name]
            for state in self.optimizer.state.values()
            for name in ("exp_avg", "exp_avg_sq")
        ]
        counts["world"] = dist.get_world_size()
        for name, tensors in (("student", parameters), ("teacher", teacher), ("adam", moments)):
            counts[name] = [len(tensors), sum(map(is_shard, tensors))]
            local = sum(t.to_local().numel() if is_shard(t) else t.numel() for t in tensors)
            counts[name] += [local, sum(t.numel() for t in tensors)]
        return real_trained(self)

    loaded_modules = list[Any]()

    load_permanently = StoredWeights.load_permanently

    def counted_load(self: StoredWeights, submodule: Any) -> None:
        load_permanently(self, submodule)
        loaded_modules.append(submodule)
        parameters = {id(p): p for loaded in loaded_modules for p in loaded.parameters()}.values()
        unsharded = sum(p.numel() for p in parameters if not p.is_meta and not is_shard(p))
        counts["whole"] = max(counts.get("whole", 0), unsharded)

    with (
        patch.object(StoredWeights, "load_permanently", counted_load),
        patch.object(training.RecoveryTrainer, "gather_trained", count),
    ):
        st.recover(small, out=directory / "fsdp", shard=True, **options(model, directory))
    (directory / f"counts-{os.environ['RANK']}.json").write_text(json.dumps(counts))

    def stop(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.state.global_step == STOP_AFTER:
            raise Stopped
        real_log(self, logs, start_time)

    try:
        with patch.object(training.RecoveryTrainer, "log", stop):
            st.recover(small, out=directory / "resumed", **options(model, directory))
    except Stopped:
        # A training state that was saved without sharding can be resumed with it.
        st.recover(small, out=directory / "resumed", shard=True, **options(model, directory))
