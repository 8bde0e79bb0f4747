"""Files of a checkpoint other than weights (tokenizer, templates, card), copied into a cut."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from ..maths.units import MIB
from .atomic import atomic_write
from .checkpoint import Checkpoint
from .checkpoint_files import CONFIG, INDEX, path_inside
from .output import ARTIFACTS, CARD

_WEIGHT_SUFFIXES = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx",
    ".pkl", ".pickle", ".npz", ".npy", ".tflite", ".joblib",
}  # fmt: skip


def auxiliary_files(model: Checkpoint) -> dict[str, Path]:
    """Name relative to the checkpoint -> path of each file other than weights, index and config.

    Hidden files and subdirectories are left out, except for `additional_chat_templates`.
    Raises StatetrimError for a link that leads out of the directory or is broken: without one of
    its files a tokenizer may behave differently.
    """
    paths = sorted(model.path.iterdir())
    templates = model.path / "additional_chat_templates"
    if templates.is_dir():
        paths += sorted(templates.iterdir())
    files: dict[str, Path] = {}
    for path in paths:
        is_hidden = path.parent == model.path and path.name.startswith(".")
        is_file = path.is_file() or (path.is_symlink() and not path.is_dir())  # also a broken link
        is_weights = path.suffix.lower() in _WEIGHT_SUFFIXES or path.name.endswith(".index.json")
        if is_file and not (is_hidden or is_weights or path.name in (CONFIG, ARTIFACTS)):
            name = str(path.relative_to(model.path))
            files[name] = path_inside(model.path, name)
    return files


def copy_files(files: Mapping[str, Path], directory: Path) -> None:
    """Copy `files` (name -> source) into `directory`, each atomically, replacing existing ones."""
    for name, source in files.items():
        target = directory / name
        target.parent.mkdir(exist_ok=True)
        with atomic_write(target) as scratch:
            shutil.copyfile(source, scratch)


def copy_all_but_weights(model: Checkpoint, directory: Path, record: str) -> str:
    """Copy config, index, tokenizer and records of earlier steps into `directory`; not the card,
    whose text is returned. An earlier record of the same step gets the prefix `source_`."""
    files = auxiliary_files(model)
    for name in (CONFIG, INDEX):
        if (model.path / name).exists():
            files[name] = path_inside(model.path, name)
    artifacts = model.path / ARTIFACTS
    for path in sorted(artifacts.iterdir()) if artifacts.is_dir() else []:
        if path.is_file() and path.suffix in (".json", ".md"):
            same_stage = path.name.replace("source_", "") == record
            name = f"source_{path.name}" if same_stage else path.name
            files[f"{ARTIFACTS}/{name}"] = path_inside(model.path, f"{ARTIFACTS}/{path.name}")
    card = card_text(files.pop(CARD, None))
    copy_files(files, directory)
    return card


def card_text(card: Path | None) -> str:
    """The first MiB of a model card; empty without one."""
    if card is None:
        return ""
    with card.open(errors="replace") as file:
        return file.read(MIB)


def is_newer(source: Path, target: Path) -> bool:
    """Whether `source` was modified after `target` was written."""
    return source.stat().st_mtime_ns > target.stat().st_mtime_ns
