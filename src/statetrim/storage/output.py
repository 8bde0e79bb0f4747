"""The directory a stage writes: it grows in `OUT.partial` under a lock and takes its name last."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.units import MIB
from .checkpoint import CONFIG, INDEX, Checkpoint, inside
from .json_file import read_object, write_object

ARTIFACTS = "statetrim"
CARD = "README.md"
MOST_RECORD_BYTES = 64 * MIB
_WEIGHTS = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx",
    ".pkl", ".pickle", ".npz", ".npy", ".tflite", ".joblib",
}  # fmt: skip


def companions(model: Checkpoint) -> dict[str, Path]:
    """Files beside the weights, by their names relative to the checkpoint: tokenizer and the like.

    Refuses links that lead out of the directory.
    """
    top = sorted(p for p in model.path.iterdir() if not p.name.startswith("."))
    templates = model.path / "additional_chat_templates"
    inner = sorted(templates.iterdir()) if templates.is_dir() else []
    names = [
        str(path.relative_to(model.path))
        for path in (*top, *inner)
        if path.is_file()
        and path.suffix.lower() not in _WEIGHTS
        and path.name not in (CONFIG, ARTIFACTS)
        and not path.name.endswith(".index.json")
    ]
    return {name: inside(model.path, name) for name in names}


def copy_companions(files: Mapping[str, Path], directory: Path) -> None:
    for name, source in files.items():
        target = directory / name
        target.parent.mkdir(exist_ok=True)
        beside = target.with_name(target.name + ".tmp")
        shutil.copyfile(source, beside)
        finish(beside, target)


def copy_unchanged(model: Checkpoint, directory: Path, record: str) -> str:
    """Everything of `model` but weights and card: config, index, tokenizer, records of earlier
    stages. Those of earlier runs of this one, named `record`, get `source_` before their names.

    Gives the beginning of its card; empty where there is none.
    """
    files = companions(model)
    artifacts = model.path / ARTIFACTS
    for path in sorted(artifacts.iterdir()) if artifacts.is_dir() else []:
        if path.is_file() and path.suffix in (".json", ".md"):
            same_stage = path.name.replace("source_", "") == record
            name = f"source_{path.name}" if same_stage else path.name
            files[f"{ARTIFACTS}/{name}"] = inside(model.path, f"{ARTIFACTS}/{path.name}")
    for name in (CONFIG, INDEX):
        if (model.path / name).exists():
            files[name] = inside(model.path, name)
    card = files.pop(CARD, None)
    copy_companions(files, directory)
    if card is None:
        return ""
    with card.open(errors="replace") as file:
        return file.read(MIB)


def already_done(out: Path, name: str, record: Mapping[str, Any]) -> bool:
    """Whether `out` is the result of this very job; anything else there is refused."""
    if not out.exists() and not out.is_symlink():
        return False
    path = out / ARTIFACTS / name
    if path.is_file() and record.items() <= read_object(path, MOST_RECORD_BYTES).items():
        return True
    raise StatetrimError(
        f"{out} exists already and is not overwritten; choose another name or move it"
    )


@contextmanager
def workplace(partial: Path, name: str, record: Mapping[str, Any]) -> Iterator[None]:
    """`partial`, locked against a second process and known to belong to this very job, which its
    record in the file `name` identifies."""
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise StatetrimError(f"{partial} is not a directory that statetrim made; move it away")
    partial.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), partial.stat()):
                raise FileNotFoundError  # the other process has just renamed it
        except OSError:
            raise StatetrimError(
                f"another process is writing {partial}; wait for it or choose another output"
            ) from None
        _claim(partial, name, record)
        yield
    finally:
        os.close(lock)


def _claim(partial: Path, name: str, record: Mapping[str, Any]) -> None:
    path = partial / ARTIFACTS / name
    if path.is_file():
        before = read_object(path, MOST_RECORD_BYTES)
        differing = [field for field in record if before.get(field) != record[field]]
        if differing:
            raise StatetrimError(
                f"{partial} is left from another job (its {differing[0]!r} differs); "
                f"remove it or choose another output"
            )
    elif any(file.suffix != ".tmp" for file in partial.rglob("*") if file.is_file()):
        raise StatetrimError(f"{partial} holds files that statetrim did not write; move it away")
    else:
        path.parent.mkdir(exist_ok=True)
        write_object(path, dict(record))


def newer(source: Path, target: Path) -> bool:
    """Whether the source changed after the target was written, as it may between two runs."""
    return source.stat().st_mtime_ns > target.stat().st_mtime_ns


def finish(beside: Path, target: Path) -> None:
    """Give a written file its name, once it is on the disk."""
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.replace(target)


def sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
