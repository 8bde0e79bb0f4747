"""Full disks, other processes and leftovers: OUT is complete or does not exist. Kills are in
tests/test_adversary.py."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import raw, tiny
from helpers.faults import file_hashes
from helpers.refusal import assert_refused, fingerprint, run, run_successfully
from statetrim.progress import Progress

SHARDS = 8


def build(directory: Path, shard_bytes: int, shards: int = SHARDS) -> Path:
    """A checkpoint with extra tensors that fill `shards` shards of `shard_bytes`, and a plan."""
    config = raw.CONFIGS["qwen3_next"]
    weights = raw.tensors(config)
    for number in range(shards * 2):
        weights[f"model.ballast.{number}"] = torch.full((shard_bytes // 8,), float(number))
    model = raw.save(directory / "model", config, weights, shards)
    (model / "README.md").write_text("---\nlicense: mit\n---\n# Model\n")
    st.select(st.open(model), "l1", "8x100%").save(directory / "plan.json")
    return directory


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return build(tmp_path / "small", 2**12)


def command(root: Path, out: Path, plan: str = "plan.json") -> list[str]:
    return ["prune", str(root / "model"), str(root / plan), "-o", str(out)]


def test_finished_shards_are_not_written_again(small: Path, tmp_path: Path) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    stopped_after(model, plan, out, shards=3)
    before = {path.name: path.stat().st_ino for path in partial.glob("*.safetensors")}
    assert 2 <= len(before) < SHARDS
    st.prune(model, plan, out)
    after = {path.name: path.stat().st_ino for path in out.glob("*.safetensors")}
    assert before.items() < after.items()


def stopped_after(model: st.Checkpoint, plan: st.Plan, out: Path, shards: int) -> None:
    """Prune until some bytes of the next shard are written."""
    sizes = [path.stat().st_size for path in sorted(model.path.glob("*.safetensors"))]
    limit = sum(sizes[: shards + 1]) - sizes[shards] // 2

    def progress(progress: Progress) -> None:
        if progress.done > limit:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        st.prune(model, plan, out, progress=progress)
    assert not out.exists()


# --- full disks ----------------------------------------------------------------------------------


def test_a_disk_that_will_be_full_is_seen_before_the_work(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is full while writing is in tests/test_adversary.py."""
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    code, err, _ = run(command(small, tmp_path / "out"))
    assert code == 1 and "its disk has" in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists() and not [
        *(tmp_path / "out.partial").glob("*.safetensors")
    ]


# --- rivals and leftovers ------------------------------------------------------------------------


def test_a_rival_that_finishes_first_is_noticed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process renames OUT.partial to OUT after this one opens it and before it locks it."""
    import fcntl

    out, partial = tmp_path / "out", tmp_path / "out.partial"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    real = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        partial.rename(out)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(st.StatetrimError, match="another process"):
        st.prune(model, plan, out)
    assert list(out.iterdir()) == [] and not partial.exists()


def test_a_rerun_changes_nothing_and_another_plan_neither(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_successfully(command(small, out))
    st.select(st.open(small / "model"), "l1", "6x100%").save(small / "other.json")
    before = fingerprint(tmp_path)
    code, err, text = run(command(small, out))
    assert (code, err) == (None, "") and str(out) in text.replace("\n", "")
    assert fingerprint(tmp_path) == before
    assert_refused(command(small, out, "other.json"), "exists already", tmp_path)


@pytest.mark.parametrize(
    ("keys", "damaged", "message"), [(6, False, "another job"), (8, True, "not valid JSON")]
)
def test_a_leftover_of_another_job_is_left_alone(
    keys: int, damaged: bool, message: str, small: Path, tmp_path: Path
) -> None:
    out, model = tmp_path / "out", st.open(small / "model")
    stopped_after(model, st.select(model, "l1", f"{keys}x100%"), out, 2)
    if damaged:
        (tmp_path / "out.partial" / "statetrim" / "prune.json").write_text("{")
    assert_refused(command(small, out), message, tmp_path)


@pytest.mark.parametrize("file", ["weights", "config"])
def test_a_source_that_changed_between_two_runs_is_refused(
    small: Path, tmp_path: Path, file: str
) -> None:
    out = tmp_path / "out"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    stopped_after(model, plan, out, shards=2)
    if file == "weights":
        shard, info = model.tensors["model.layers.0.linear_attn.conv1d.weight"]
        with shard.path.open("r+b") as target:
            target.seek(info.start)
            target.write(b"\7")
    else:
        tiny.edit_json(small / "model" / "config.json", rope_theta=5.0)
    assert_refused(command(small, out), "another model", tmp_path)
    # A new plan for the changed source does not resume the old job either.
    st.select(st.open(small / "model"), "l1", "8x100%").save(small / "fresh.json")
    assert_refused(command(small, out, "fresh.json"), "another job")


def test_a_source_that_changed_where_the_plan_does_not_look(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards finished before the source changed are written again, so that none are mixed."""
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    monkeypatch.setattr(st.Checkpoint, "digest", mark := "2:which does not show it")
    plan = replace(plan, lineage={"source": mark})
    stopped_after(model, plan, out, shards=3)
    shard, info = next(
        (shard, info)
        for shard, info in model.tensors.values()
        if info.name.startswith("model.ballast") and (partial / shard.path.name).exists()
    )
    with shard.path.open("r+b") as target:
        target.seek(info.start)
        target.write(b"\7\7\7\7")
    newer = (partial / shard.path.name).stat().st_mtime_ns + 1
    os.utime(shard.path, ns=(newer, newer))
    st.prune(st.open(small / "model"), plan, out)
    st.prune(st.open(small / "model"), plan, tmp_path / "whole")
    assert file_hashes(out) == file_hashes(tmp_path / "whole")
