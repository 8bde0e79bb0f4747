"""A directory with links to the checked files of a checkpoint, for libraries to load from.

Libraries also look for adapters, code, other weights, and links out of a directory. In a staging
directory they find only what may be read.
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
from ..storage.redirections import check_no_redirections, without_redirections

GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_MAX_BYTES = 16 * MIB
_CODE_FIELDS = ("auto_map", "custom_generate")  # fields that may name code


@contextmanager
def staged_tokenizer(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yields a temporary directory with config.json and links to the tokenizer's files, without
    code; config fields that name files or code are removed."""
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
    """Link the weights into `directory`, and write their configs without redirections; refuses a
    checkpoint that redirects to other files."""
    check_no_redirections(checkpoint.path, checkpoint.config)
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
    """Write config.json without the fields that choose code or kernels."""
    write_json(directory / CONFIG, without_redirections(checkpoint.config))


def _without_file_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a tokenizer config without those that name files or code. Its files have fixed
    names, so a path there is obsolete or malicious."""
    return {
        name: value
        for name, value in fields.items()
        if not name.endswith(("_file", "_files")) and name not in (*_CODE_FIELDS, "name_or_path")
    }


def _link(path: Path, target: Path) -> None:
    """Make `target` a symbolic link to `path`; creates its parent directory."""
    target.parent.mkdir(exist_ok=True)
    target.symlink_to(path.resolve())
