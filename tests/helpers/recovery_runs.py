"""The same recovery by DDP, by FSDP2, and stopped and resumed; one of several processes."""

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
    """On DIRECTORY/words.jsonl; one row of every batch is a recall sequence, so that of two
    processes only one has it."""
    # Ten times the default; at a hundred times, Adam's first steps make whole steps of rounding.
    return {
        "teacher": st.open(model), "text": directory / "words.jsonl", "batch_size": BATCH,
        "tokens": STEPS * BATCH * LENGTH, "length": LENGTH, "learning_rate": 1e-3,
        "recall": 1 / BATCH, "save_every": 2,
    }  # fmt: skip


def patch_held_out_rows() -> Any:
    return patch("statetrim.recovery.data.MOST_HELD_OUT_ROWS", 4)


class Stopped(Exception):
    pass


def recoveries(model: str, small: st.Checkpoint, directory: Path) -> None:
    """Writes DIRECTORY/{ddp,fsdp,resumed}, and DIRECTORY/counts-RANK.json with what was sharded,
    and how many elements of parameters were whole at a time while the models were read."""
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

    def counted_load(self: StoredWeights, module: Any) -> None:
        load_permanently(self, module)
        loaded_modules.append(module)
        parameters = {id(p): p for loaded in loaded_modules for p in loaded.parameters()}.values()
        unsharded = sum(p.numel() for p in parameters if not p.is_meta and not is_shard(p))
        counts["whole"] = max(counts.get("whole", 0), unsharded)

    with (
        patch.object(StoredWeights, "settle", counted_load),
        patch.object(training.RecoveryTrainer, "trained", count),
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
        # The state was saved without sharding; it does not matter.
        st.recover(
            small, out=directory / "resumed", resume=True, shard=True, **options(model, directory)
        )
