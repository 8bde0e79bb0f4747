"""Kills, full disks, other processes and leftovers: OUT is complete or does not exist."""

import hashlib
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import raw
from helpers.forker import Forker
from helpers.refusal import check_refusal, fingerprint
from statetrim.progress import Progress

SHARDS = 8
SHARD_BYTES = 6 * 2**20
KILLS = 30


def build(directory: Path, shard_bytes: int, shards: int = SHARDS) -> Path:
    """A checkpoint with extra tensors that fill `shards` shards of `shard_bytes`, and a plan."""
    config = raw.CONFIGS["qwen3_next"]
    weights = raw.tensors(config)
    for number in range(shards * 2):
        weights[f"model.ballast.{number}"] = torch.full((shard_bytes // 8,), float(number))
    model = raw.save(directory / "model", config, weights, shards)
    (model / "tokenizer.json").write_text("{}" * 50_000)
    (model / "README.md").write_text("---\nlicense: mit\n---\n# Model\n")
    st.select(st.open(model), "l1", 8).save(directory / "plan.json")
    return directory


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("big"), SHARD_BYTES)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return build(tmp_path / "small", 2**12)


def command(root: Path, out: Path, plan: str = "plan.json") -> list[str]:
    return ["prune", str(root / "model"), str(root / plan), "-o", str(out)]


def digests(directory: Path) -> dict[str, str]:
    by_file = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            by_file[str(path.relative_to(directory))] = digest
    return by_file


def finished_shards(partial: Path) -> int:
    return len(list(partial.glob("*.safetensors"))) if partial.is_dir() else -1


# --- kill -9 -------------------------------------------------------------------------------------


def test_kill_at_random_moments(big: Path, tmp_path: Path, forker: Forker) -> None:
    forker.run(command(big, tmp_path / "warm"))  # fills the page cache
    undisturbed = forker.run(command(big, tmp_path / "whole"))
    assert undisturbed["code"] == 0, undisturbed["err"]
    # Before the job's record is written a kill can do no damage: only 20 % of the kills are there.
    # The others are timed by bytes written, since seconds depend on the load of the disk.
    undisturbed_out = tmp_path / "whole"
    first = (undisturbed_out / "statetrim" / "prune.json").stat().st_mtime
    before = undisturbed["seconds"] - ((undisturbed_out / "config.json").stat().st_mtime - first)
    size = sum(path.stat().st_size for path in undisturbed_out.rglob("*") if path.is_file())
    assert before > 0
    expected = digests(tmp_path / "whole")
    assert digests(tmp_path / "warm") == expected
    chance = random.Random(20240521)
    stages: list[int] = []
    completed = 0
    for number in range(KILLS):
        out = tmp_path / f"out{number}"
        partial = out.with_name(out.name + ".partial")
        # Stratified, so that a few kills cover all of the run.
        fraction = (number + chance.random()) / KILLS
        if fraction < 0.2:
            ended = forker.run(command(big, out), kill_after=before * fraction * 5)
        else:
            so_far = round(size * (fraction - 0.2) / 0.8)
            ended = forker.run(
                command(big, out), kill_after=0.0, kill_when=partial, kill_size=so_far
            )
        if out.exists():
            completed += 1
            assert digests(out) == expected
        else:
            assert ended["code"] == -9
            stages.append(finished_shards(partial))
        again = forker.run(command(big, out))
        assert again["code"] == 0, again["err"]
        assert digests(out) == expected
        assert not partial.exists()
        shutil.rmtree(out)
    assert completed <= KILLS // 3, "most kills must land before the end"
    assert min(stages) < 1, "some before the first shard was finished"
    assert len({stage for stage in stages if 0 < stage < SHARDS}) >= 2, stages


def test_finished_shards_are_not_written_again(small: Path, tmp_path: Path) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    stopped_after(model, plan, out, shards=3)
    before = {path.name: path.stat().st_ino for path in partial.glob("*.safetensors")}
    assert 2 <= len(before) < SHARDS
    st.prune(model, plan, out)
    after = {path.name: path.stat().st_ino for path in out.glob("*.safetensors")}
    assert before.items() < after.items()


class Stopped(Exception):
    pass


def stopped_after(model: st.Checkpoint, plan: st.Plan, out: Path, shards: int) -> None:
    """Prune until some bytes of the next shard are written."""
    sizes = [path.stat().st_size for path in sorted(model.path.glob("*.safetensors"))]
    limit = sum(sizes[: shards + 1]) - sizes[shards] // 2

    def progress(progress: Progress) -> None:
        if progress.done > limit:
            raise Stopped

    with pytest.raises(Stopped):
        st.prune(model, plan, out, progress=progress)
    assert not out.exists()


# --- full disks ----------------------------------------------------------------------------------


@pytest.fixture
def little_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount_point)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


@pytest.mark.parametrize("reported_free", [None, 2**40], ids=["seen before", "found while writing"])
def test_a_full_disk(
    tmp_path: Path, little_disk: Path, forker: Forker, reported_free: int | None
) -> None:
    """Write 4 MiB to a disk of 8 MiB with 3 free; `reported_free` is what the disk reports."""
    root = build(tmp_path / "root", 2**19)
    ballast, out = little_disk / "ballast", little_disk / "out"
    ballast.write_bytes(b"\1" * (5 * 2**20))
    assert forker.run(command(root, tmp_path / "whole"))["code"] == 0
    for _ in range(2):  # a second failure changes nothing
        ended = forker.run(command(root, out), free=reported_free)
        assert ended["code"] == 1
        assert ended["err"].startswith("statetrim: ") and ended["err"].count("\n") == 1
        message = "MiB more, and its disk has" if reported_free is None else "full; free some space"
        assert message in ended["err"]
        assert not out.exists()
        reached = finished_shards(little_disk / "out.partial")
        assert reached == 0 if reported_free is None else 0 < reached < SHARDS
    os.truncate(ballast, 3 * 2**20)  # just enough, with what is already written
    again = forker.run(command(root, out))
    assert again["code"] == 0, again["err"]
    assert digests(out) == digests(tmp_path / "whole")
    assert {path.name for path in little_disk.iterdir()} == {"out", "ballast"}


# --- rivals and leftovers ------------------------------------------------------------------------


def test_a_second_process_is_turned_away(small: Path, tmp_path: Path, forker: Forker) -> None:
    out = tmp_path / "out"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    replies: list[dict[str, Any]] = []

    def progress(progress: Progress) -> None:
        if not replies:  # this process is in the middle of writing
            replies.append(forker.run(command(small, out)))

    st.prune(model, plan, out, progress=progress)
    check_refusal(replies[0]["code"], replies[0]["err"], replies[0]["out"], "another process")
    assert forker.run(command(small, tmp_path / "alone"))["code"] == 0
    assert digests(out) == digests(tmp_path / "alone")


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


def test_other_content_under_out_is_left_alone(small: Path, tmp_path: Path, forker: Forker) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    before = fingerprint(tmp_path)
    ended = forker.run(command(small, out))
    check_refusal(ended["code"], ended["err"], ended["out"], "exists already")
    assert fingerprint(tmp_path) == before


def test_a_rerun_after_success_changes_nothing(small: Path, tmp_path: Path, forker: Forker) -> None:
    out = tmp_path / "out"
    assert forker.run(command(small, out))["code"] == 0
    before = fingerprint(tmp_path)
    ended = forker.run(command(small, out))
    assert (ended["code"], ended["err"]) == (0, "") and str(out) in ended["out"].replace("\n", "")
    assert fingerprint(tmp_path) == before


def test_another_plan_does_not_touch_the_result(
    small: Path, tmp_path: Path, forker: Forker
) -> None:
    out = tmp_path / "out"
    assert forker.run(command(small, out))["code"] == 0
    st.select(st.open(small / "model"), "l1", 6).save(small / "other.json")
    before = fingerprint(tmp_path)
    ended = forker.run(command(small, out, "other.json"))
    check_refusal(ended["code"], ended["err"], ended["out"], "exists already")
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("finished", [True, False], ids=["another plan", "not ours"])
def test_a_leftover_of_another_job_is_left_alone(
    small: Path, tmp_path: Path, forker: Forker, finished: bool
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    model = st.open(small / "model")
    st.select(model, "l1", 6).save(small / "other.json")
    if finished:
        stopped_after(model, st.Plan.load(small / "other.json"), out, shards=2)
    else:
        (partial / "notes").mkdir(parents=True)
        (partial / "notes" / "thesis.tex").write_text("mine")
    before = fingerprint(tmp_path)
    ended = forker.run(command(small, out))
    message = "another job" if finished else "did not write"
    check_refusal(ended["code"], ended["err"], ended["out"], message)
    assert fingerprint(tmp_path) == before


def test_a_damaged_record_is_refused(small: Path, tmp_path: Path, forker: Forker) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    stopped_after(model, plan, out, shards=2)
    (partial / "statetrim" / "prune.json").write_text("{")
    before = fingerprint(tmp_path)
    ended = forker.run(command(small, out))
    check_refusal(ended["code"], ended["err"], ended["out"], "not valid JSON")
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("file", ["weights", "config"])
def test_a_source_that_changed_between_two_runs_is_refused(
    small: Path, tmp_path: Path, forker: Forker, file: str
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
        config = json.loads((small / "model" / "config.json").read_text())
        (small / "model" / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    before = fingerprint(tmp_path)
    ended = forker.run(command(small, out))
    check_refusal(ended["code"], ended["err"], ended["out"], "another model")
    assert fingerprint(tmp_path) == before
    # A new plan for the changed source does not resume the old job either.
    st.select(st.open(small / "model"), "l1", 8).save(small / "fresh.json")
    ended = forker.run(command(small, out, "fresh.json"))
    check_refusal(ended["code"], ended["err"], ended["out"], "another job")


def test_a_source_that_changed_where_the_plan_does_not_look(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards finished before the source changed are written again, so that none are mixed; if the
    change shows in the digest of the source, it is another job."""
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    model, plan = st.open(small / "model"), st.Plan.load(small / "plan.json")
    stopped_after(model, plan, out, shards=3)
    name = next(
        info.name
        for shard, info in model.tensors.values()
        if info.name.startswith("model.ballast") and (partial / shard.path.name).exists()
    )
    shard, info = model.tensors[name]

    def spoil(offset: int) -> None:
        with shard.path.open("r+b") as target:
            target.seek(offset)
            target.write(b"\7\7\7\7")
        newer = (partial / shard.path.name).stat().st_mtime_ns + 1
        os.utime(shard.path, ns=(newer, newer))

    original = shard.path.read_bytes()
    spoil(info.start)
    with pytest.raises(st.StatetrimError, match="another model"):
        st.prune(st.open(small / "model"), plan, out)
    with pytest.raises(st.StatetrimError, match="left from another job"):
        st.prune(changed := st.open(small / "model"), st.select(changed, "l1", 8), out)
    shard.path.write_bytes(original)
    monkeypatch.setattr(st.Checkpoint, "digest", mark := "2:which does not show it")
    plan = replace(plan, lineage={"source": mark})
    shutil.rmtree(partial)
    stopped_after(st.open(small / "model"), plan, out, shards=3)
    spoil(info.start)
    st.prune(st.open(small / "model"), plan, out)
    st.prune(st.open(small / "model"), plan, tmp_path / "whole")
    assert digests(out) == digests(tmp_path / "whole")
