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
from ..storage.auxiliary_files import auxiliary_files
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.file_names import CONFIG, INDEX
from ..storage.json_file import read_json, write_json
from ..storage.redirections import (
    check_no_redirections,
    check_run_not_quantized,
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
        files = auxiliary_files(checkpoint)
        _write_config(checkpoint, directory)
        if TOKENIZER_CONFIG in files:
            fields = read_json(files.pop(TOKENIZER_CONFIG), _MAX_BYTES)
            write_json(directory / TOKENIZER_CONFIG, _without_file_fields(fields))
        for relative, path in files.items():
            if path.suffix not in (".py", ".md"):
                _link(path, directory / relative)
        yield directory


def stage_checkpoint(checkpoint: Checkpoint, directory: Path) -> None:
    """Show the weights in `directory`, with their config."""
    check_no_redirections(checkpoint.path, checkpoint.config)
    check_run_not_quantized(checkpoint.path, checkpoint.config)
    _write_config(checkpoint, directory)
    if checkpoint.index is not None:
        write_json(directory / INDEX, checkpoint.index)
    for shard in checkpoint.shards:
        _link(shard.path, directory / shard.path.name)
    generation = checkpoint.path / GENERATION_CONFIG
    if generation.exists() or generation.is_symlink():
        fields = read_json(path_inside(checkpoint.path, GENERATION_CONFIG), _MAX_BYTES)
        kept = {name: value for name, value in fields.items() if name not in _CODE_FIELDS}
        write_json(directory / GENERATION_CONFIG, kept)


def _write_config(checkpoint: Checkpoint, directory: Path) -> None:
    write_json(directory / CONFIG, without_redirections(checkpoint.config))


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
