"""A checkpoint as a library is shown it: only files that were checked, under their own names.

Libraries look for more in a directory than was opened: adapters, code, other weights, links that
lead elsewhere. So they are given a directory of our own, with links to exactly what may be read.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..maths.units import MIB
from ..storage.checkpoint import Checkpoint, inside
from ..storage.companions import companions
from ..storage.file_names import CONFIG, INDEX
from ..storage.json_file import read_object, write_object
from ..storage.redirections import (
    refuse_quantized_run,
    refuse_redirections,
    without_redirections,
)

GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_MAX_BYTES = 16 * MIB
_CODE_FIELDS = ("auto_map", "custom_generate")  # fields that may name code


@contextmanager
def staged_tokenizer(checkpoint: Checkpoint) -> Iterator[Path]:
    """A directory with the tokenizer's files; a field of theirs that names a file has no effect."""
    with tempfile.TemporaryDirectory(prefix="statetrim-") as name:
        directory = Path(name)
        files = companions(checkpoint)
        _write_config(checkpoint, directory)
        if TOKENIZER_CONFIG in files:
            fields = read_object(files.pop(TOKENIZER_CONFIG), _MAX_BYTES)
            write_object(directory / TOKENIZER_CONFIG, _without_file_fields(fields))
        for relative, path in files.items():
            if path.suffix not in (".py", ".md"):
                _link(path, directory / relative)
        yield directory


def stage_checkpoint(checkpoint: Checkpoint, directory: Path) -> None:
    """Show the weights in `directory`, with their config."""
    refuse_redirections(checkpoint.path, checkpoint.config)
    refuse_quantized_run(checkpoint.path, checkpoint.config)
    _write_config(checkpoint, directory)
    if checkpoint.index is not None:
        write_object(directory / INDEX, checkpoint.index)
    for shard in checkpoint.shards:
        _link(shard.path, directory / shard.path.name)
    generation = checkpoint.path / GENERATION_CONFIG
    if generation.exists() or generation.is_symlink():
        fields = read_object(inside(checkpoint.path, GENERATION_CONFIG), _MAX_BYTES)
        kept = {name: value for name, value in fields.items() if name not in _CODE_FIELDS}
        write_object(directory / GENERATION_CONFIG, kept)


def _write_config(checkpoint: Checkpoint, directory: Path) -> None:
    write_object(directory / CONFIG, without_redirections(checkpoint.config))


def _without_file_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files have fixed names; a path here is a leftover of where it was saved, or a trap."""
    return {
        name: value
        for name, value in fields.items()
        if not name.endswith(("_file", "_files")) and name not in (*_CODE_FIELDS, "name_or_path")
    }


def _link(path: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    target.symlink_to(path.resolve())
