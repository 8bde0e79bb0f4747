"""Files of a checkpoint other than weights, which are copied when it is written again."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from ..maths.units import MIB
from .atomic import atomic_write
from .checkpoint import Checkpoint, path_inside
from .file_names import CONFIG, INDEX
from .output import ARTIFACTS, CARD

_WEIGHT_SUFFIXES = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx",
    ".pkl", ".pickle", ".npz", ".npy", ".tflite", ".joblib",
}  # fmt: skip


def auxiliary_files(model: Checkpoint) -> dict[str, Path]:
    """Files other than weights, by their names relative to the checkpoint: tokenizer and the like.

    Refuses links that lead out of the directory, or nowhere: a tokenizer without one of its files
    may be another.
    """
    top_level = sorted(p for p in model.path.iterdir() if not p.name.startswith("."))
    templates = model.path / "additional_chat_templates"
    inner_files = sorted(templates.iterdir()) if templates.is_dir() else []
    names = [
        str(path.relative_to(model.path))
        for path in (*top_level, *inner_files)
        if (path.is_file() or (path.is_symlink() and not path.is_dir()))
        and path.suffix.lower() not in _WEIGHT_SUFFIXES
        and path.name not in (CONFIG, ARTIFACTS)
        and not path.name.endswith(".index.json")
    ]
    return {name: path_inside(model.path, name) for name in names}


def copy_files(files: Mapping[str, Path], directory: Path) -> None:
    for name, source in files.items():
        target = directory / name
        target.parent.mkdir(exist_ok=True)
        with atomic_write(target) as scratch:
            shutil.copyfile(source, scratch)


def copy_all_but_weights(model: Checkpoint, directory: Path, record: str) -> str:
    """Everything of `model` but weights and card: config, index, tokenizer, records of earlier
    stages. Those of earlier runs of this one, named `record`, get `source_` before their names.

    Gives the beginning of its card; empty where there is none.
    """
    files = auxiliary_files(model)
    artifacts = model.path / ARTIFACTS
    for path in sorted(artifacts.iterdir()) if artifacts.is_dir() else []:
        if path.is_file() and path.suffix in (".json", ".md"):
            same_stage = path.name.replace("source_", "") == record
            name = f"source_{path.name}" if same_stage else path.name
            files[f"{ARTIFACTS}/{name}"] = path_inside(model.path, f"{ARTIFACTS}/{path.name}")
    for name in (CONFIG, INDEX):
        if (model.path / name).exists():
            files[name] = path_inside(model.path, name)
    card = files.pop(CARD, None)
    copy_files(files, directory)
    if card is None:
        return ""
    with card.open(errors="replace") as file:
        return file.read(MIB)


def is_newer(source: Path, target: Path) -> bool:
    """Whether the source changed after the target was written, as it may between two runs."""
    return source.stat().st_mtime_ns > target.stat().st_mtime_ns
