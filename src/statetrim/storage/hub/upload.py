"""Upload a cut to the hub: weights, tokenizer, card, and records that contain no local paths."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from ...errors import StatetrimError
from ...maths.formatting import bytes_text
from ...options import takes_options
from ...version import __version__
from ..auxiliary_files import files_besides_weights
from ..checkpoint import Checkpoint, path_inside, require_prunable
from ..models import ModelLike, as_checkpoint
from ..output import ARTIFACTS, CARD
from ..quantized.find import describe_schemes
from .download import HubModel
from .hub_errors import HubUnreachable, explain_hub_errors
from .options import PushOptions

_RECORD_SUFFIXES = {".json", ".md"}
# /home/x, ~/x, ../x, C:\x
_PATH_PATTERN = re.compile(r"(?<![\w.:/<@-])(?:~?/|\.\.?/|[A-Za-z]:[\\/])[\w.-]")
_DATA_SUFFIXES = (
    ".jsonl", ".json", ".txt", ".parquet", ".csv", ".gz", ".zst", ".safetensors", ".arrow",
)  # fmt: skip

logger = logging.getLogger("statetrim")


@dataclass(frozen=True)
class Pushed:
    """Where a model was uploaded, which files, and which records were left out."""

    url: str
    private: bool
    files: tuple[str, ...]
    left_out: tuple[str, ...]  # of `OUT/statetrim`
    quantized: str = ""  # how many weights are stored by which scheme; empty if none is quantised


@takes_options(PushOptions)
def push(model: ModelLike, options: PushOptions) -> Pushed:
    """Upload a checkpoint to `repo` (`OWNER/NAME`) on the Hugging Face hub.

    A new repository is private unless `public`; other files in an existing one are kept.
    Records in `OUT/statetrim` that contain a path of this machine are left out. Raises
    StatetrimError if the model has no card or cannot be pruned, if the hub denies access, or if
    `repo` exists and is public without `public`.
    """
    from huggingface_hub import HfApi

    repo = options.repo
    target = HubModel.parse(repo)
    if target is None or target.revision is not None:
        raise StatetrimError(f"{repo[:100]!r} is not a repository name; give OWNER/NAME")
    checkpoint = require_prunable(as_checkpoint(model))
    files, left_out = _files_to_upload(checkpoint)
    nbytes = sum(path.stat().st_size for path in files.values())
    api = HfApi()
    try:
        with explain_hub_errors(repo), _explain_denied_access(repo):
            url = str(api.create_repo(repo, private=not options.public, exist_ok=True))
            is_private = bool(api.model_info(repo).private)  # that of a repository which was there
            if not options.public and not is_private:
                raise StatetrimError(
                    f"{repo} is there already and is public; give --public to push to it"
                )
            logger.info("uploading %s in %d files to %s", bytes_text(nbytes), len(files), repo)
            api.upload_folder(
                repo_id=repo,
                folder_path=checkpoint.path,
                allow_patterns=[escape(name) for name in files],
                commit_message=f"Upload a model cut by statetrim {__version__}",
            )
    except HubUnreachable as error:
        raise StatetrimError(f"{error}; nothing was pushed to {repo}") from None
    except RuntimeError as error:  # huggingface_hub raises it if a file was not uploaded
        reason = str(error).partition("\n")[0][:200]
        raise StatetrimError(f"{reason} Run the same command again to resume") from None
    quantized = describe_schemes(checkpoint.quantized) if checkpoint.quantized else ""
    return Pushed(url, is_private, tuple(files), tuple(left_out), quantized)


@contextmanager
def _explain_denied_access(repo: str) -> Iterator[None]:
    """Within, a missing or insufficient token becomes a StatetrimError that says how to log in."""
    from huggingface_hub import errors

    try:
        yield
    except (errors.LocalTokenNotFoundError, errors.HfHubHTTPError) as error:
        status = getattr(getattr(error, "response", None), "status_code", 401)
        if status not in (401, 403):
            raise
        raise StatetrimError(
            f"the hub does not let you write to {repo}; log in with a token that may: hf auth login"
        ) from None


def _files_to_upload(model: Checkpoint) -> tuple[dict[str, Path], list[str]]:
    """Name -> path of the files to upload, and the names of the records to leave out."""
    files = {shard.path.name: shard.path for shard in model.shards} | files_besides_weights(model)
    if CARD not in files:
        raise StatetrimError(f"{model.path} has no {CARD}; a model is pushed with its card")
    left_out = []
    artifacts = model.path / ARTIFACTS
    for path in sorted(artifacts.rglob("*")) if artifacts.is_dir() else []:
        if path.is_file():
            name = path.relative_to(model.path).as_posix()
            is_record = path.suffix in _RECORD_SUFFIXES
            if is_record and not _contains_path(path_inside(model.path, name)):
                files[name] = path
            else:
                left_out.append(name)
    return files, left_out


def _contains_path(record: Path) -> bool:
    """Whether a JSON or Markdown record contains a path of this machine; True for invalid JSON."""
    text = record.read_text(encoding="utf-8", errors="replace")
    if record.suffix != ".json":
        return _PATH_PATTERN.search(text) is not None
    try:
        return any(_is_path(string) for string in _strings(json.loads(text)))
    except (ValueError, RecursionError):
        return True  # statetrim did not write it


def _is_path(text: str) -> bool:
    """Whether `text` contains what looks like a local path, or is that of a data file or of
    anything that exists here."""
    if _PATH_PATTERN.search(text):
        return True
    has_separator = "/" in text or "\\" in text
    return has_separator and (
        text.endswith(_DATA_SUFFIXES) or (len(text) < 1000 and Path(text).exists())
    )


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
