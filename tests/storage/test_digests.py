"""A digest changes with any number of the model, and is known from a cache until a file changes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import raw, tiny
from statetrim.storage import digests


def flip(model: st.Checkpoint, name: str, number: int) -> None:
    """Flip a bit of one number of a tensor; size and mtime of the file stay."""
    shard, info = model.tensors[name]
    status, width = shard.path.stat(), info.nbytes // max(1, torch.Size(info.shape).numel())
    with shard.path.open("r+b") as file:
        file.seek(info.start + number * width)
        byte = file.read(1)[0]
        file.seek(info.start + number * width)
        file.write(bytes([byte ^ 1]))
    os.utime(shard.path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "delta_net", "mamba2"])
def test_a_change_of_any_one_number_is_noticed(
    model_type: str, checkpoint: Any, tmp_path: Path
) -> None:
    """The last number of each tensor."""
    model = st.open(shutil.copytree(checkpoint(model_type), tmp_path / "model"))
    seen = {model.digest}
    for name, (_, info) in model.tensors.items():
        flip(model, name, torch.Size(info.shape).numel() - 1)
        changed = st.open(model.path).digest
        assert changed not in seen, name
        seen.add(changed)
        flip(model, name, torch.Size(info.shape).numel() - 1)
    assert st.open(model.path).digest == model.digest


def test_other_shards_do_not_make_another_model(tmp_path: Path) -> None:
    many_shards = tiny.build("delta_net", tmp_path / "one", shard_size="40KB")
    few_shards = tiny.build("delta_net", tmp_path / "two", shard_size="1MB")
    assert len(st.open(many_shards).shards) > len(st.open(few_shards).shards)
    assert st.open(many_shards).digest == st.open(few_shards).digest


def test_what_was_hashed_is_kept_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "_MIN_CACHED_BYTES", 0)
    model = st.open(raw.build(tmp_path / "model", "qwen3_5_text"))
    first = model.digest
    hashed: list[Path] = []
    stock = digests._hash_tensors
    monkeypatch.setattr(digests, "_hash_tensors", lambda s: hashed.append(s.path) or stock(s))
    assert st.open(model.path).digest == first and not hashed
    flip(model, next(iter(model.tensors)), 0)  # mtime is restored
    assert st.open(model.path).digest != first and len(hashed) == 1
    for path in (tmp_path / "cache" / "statetrim" / "digests").iterdir():
        path.write_text("{}")
    assert st.open(model.path).digest != first and len(hashed) == 1 + len(model.shards)
