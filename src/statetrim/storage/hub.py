"""Models of the Hugging Face hub in its local cache, models--OWNER--NAME/snapshots/COMMIT.

Downloaded are the config, or all files but pickled weights, Python code, and weights that the index
does not name.
"""

import errno
import logging
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import bytes_text
from ..progress import is_watched
from .checkpoint_files import CONFIG, INDEX, MAX_CONFIG_BYTES, MAX_INDEX_BYTES, SINGLE_FILE
from .json_file import read_json
from .safetensors_file import Shard, parse_header
from .space import NoSpace, check_free

_HUB_ID = re.compile(r"(\w[\w.-]*/[\w.-]+)(?:@(\w[\w./-]*))?")
_OTHER_FILES = re.compile(
    r"[\w.-]+\.(json|jinja|tiktoken|model)|(merges|vocab)\.txt|README\.md|LICENSE[\w.-]*"
    r"|additional_chat_templates/[\w.-]+\.jinja"
)
_PARALLEL_REQUESTS = 8
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)

logger = logging.getLogger("statetrim")


@dataclass(frozen=True)
class HubModel:
    """A repository on the hub at a revision: a branch, a tag or a commit."""

    repo: str
    revision: str | None = None

    @staticmethod
    def parse(text: str) -> "HubModel | None":
        """Parse `OWNER/NAME` or `OWNER/NAME@REVISION`; None for anything else, such as ./MODEL."""
        match = _HUB_ID.fullmatch(text)
        return HubModel(match[1], match[2]) if match and ".." not in text else None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"

    def download_config(self) -> Path:
        """The model's config.json in the local cache, downloaded if needed; no other file."""
        from huggingface_hub import (
            get_hf_file_metadata,
            hf_hub_download,
            hf_hub_url,
            is_offline_mode,
        )

        try:
            with explain_hub_errors(self.repo, self.revision):
                url = hf_hub_url(self.repo, CONFIG, revision=self.revision)
                nbytes = get_hf_file_metadata(url).size or 0
                if nbytes > MAX_CONFIG_BYTES:
                    raise StatetrimError(
                        f"the {CONFIG} of {self} has {bytes_text(nbytes)}: no config"
                    )
                return Path(hf_hub_download(self.repo, CONFIG, revision=self.revision))
        except HubUnreachable as error:
            cached = self._cached_config(str(error))
            if not is_offline_mode():
                logger.info("%s; %s is taken from the local cache", error, self)
            return cached

    def download(self) -> Path:
        """The cached directory with weights, config, tokenizer and card; missing files are
        downloaded. Without the hub, it must have all weights.
        """
        try:
            with explain_hub_errors(self.repo, self.revision):
                return self._download_files()
        except HubUnreachable as error:
            directory = self._cached_config(str(error)).parent
            if missing := missing_weight_files(directory):
                raise StatetrimError(
                    f"{len(missing)} weight files of {self} are not in the local hub cache, the "
                    f"first is {missing[0][:100]}, and {error}; what has arrived is kept"
                ) from None
            return directory

    def read_headers(self, directory: Path) -> tuple[Shard, ...]:
        """Headers of the weight files, without the weights. The shards' paths lie in `directory`,
        and byte offsets count from the end of the header, so tensors cannot be read by them."""
        try:
            with explain_hub_errors(self.repo, self.revision):
                commit, sizes = self._commit_and_sizes()
                names = self._weight_files(sizes)
                with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
                    read = partial(_read_remote_shard, self.repo, commit, directory)
                    return tuple(pool.map(read, names))
        except HubUnreachable as error:
            raise StatetrimError(
                f"the weights of {self} are not in the local hub cache, and {error}"
            ) from None

    def _commit_and_sizes(self) -> tuple[str | None, dict[str, int]]:
        """The commit of the revision, and file name -> bytes (0 if unknown), from the hub."""
        from huggingface_hub import HfApi

        info = HfApi().model_info(self.repo, revision=self.revision, files_metadata=True)
        return info.sha, {file.rfilename: file.size or 0 for file in info.siblings or []}

    def _download_files(self) -> Path:
        """Download the files that the cache lacks; return the directory of the snapshot."""
        from huggingface_hub import constants, snapshot_download

        commit, sizes = self._commit_and_sizes()
        names = self._weight_files(sizes)
        names += [name for name in sizes if _OTHER_FILES.fullmatch(name)]
        missing = [name for name in names if self._cached(name, commit) is None]
        if missing:
            nbytes = sum(sizes[name] for name in missing)
            check_free(
                Path(constants.HF_HUB_CACHE),
                nbytes,
                f"{self} needs",
                "the disk of the hub cache",
                "; HF_HOME names another place",
            )
            amount = f"{bytes_text(nbytes)} in " if nbytes else ""  # a mirror may not report sizes
            logger.info("downloading %s: %s%d files", self, amount, len(missing))
            snapshot_download(
                self.repo,
                revision=self.revision,
                allow_patterns=names,
                tqdm_class=None if is_watched() else _hidden_bar(),
            )
        config = self._cached(CONFIG, commit)
        assert config is not None, "open_checkpoint downloads it first"
        return config.parent

    def _weight_files(self, sizes: Mapping[str, int]) -> list[str]:
        """Names of the safetensors files that the index names, or the single file."""
        from huggingface_hub import hf_hub_download

        if sizes.get(INDEX, 0) > MAX_INDEX_BYTES:
            raise StatetrimError(f"the {INDEX} of {self} is larger than any index, so it is left")
        if INDEX in sizes:
            index = Path(hf_hub_download(self.repo, INDEX, revision=self.revision))
            files = (_indexed_files(index) or set()) & set(sizes)
            return sorted(name for name in files if re.fullmatch(r"[\w.-]+\.safetensors", name))
        if SINGLE_FILE not in sizes:
            raise StatetrimError(
                f"{self} has no {SINGLE_FILE} and no {INDEX}; only safetensors weights can be cut"
            )
        return [SINGLE_FILE]

    def _cached(self, name: str, revision: str | None) -> Path | None:
        """Path of a file in the local cache; None if it is not there."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repo, name, revision=revision)
        return Path(path) if isinstance(path, str) else None

    def _cached_config(self, why: str) -> Path:
        """Path of the cached config.json; without one StatetrimError, which ends in `why`."""
        config = self._cached(CONFIG, self.revision)
        if config is None:
            raise StatetrimError(
                f"{self} is neither a directory here nor in the local hub cache, and {why}"
            )
        return config


def missing_weight_files(directory: Path) -> list[str]:
    """Names of the weight files that a snapshot in the cache lacks."""
    index = directory / INDEX
    files = _indexed_files(index) if index.exists() else None
    if files is None:
        files = {SINGLE_FILE}
    return sorted(name for name in files if not (directory / name).exists())


def _indexed_files(index: Path) -> set[str] | None:
    """Names of the files in an index's weight map; None if it has none."""
    weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    return {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else None


def _read_remote_shard(repo: str, commit: str | None, directory: Path, name: str) -> Shard:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        metadata = HfApi().parse_safetensors_file_metadata(repo, name, revision=commit)
        header: dict[str, Any] = {}
        for tensor_name, entry in metadata.tensors.items():
            shape, offsets = entry.shape, [*entry.data_offsets]
            header[tensor_name] = {"dtype": entry.dtype, "shape": shape, "data_offsets": offsets}
    except (SafetensorsParsingError, AttributeError, LookupError, TypeError, RecursionError):
        raise StatetrimError(f"the header of {name} of {repo} is not one of safetensors") from None
    return Shard(directory / name, {}, parse_header(name, header, 0))


def _hidden_bar() -> type:
    """A class for the bars of huggingface_hub that draws nothing."""
    from huggingface_hub.utils.tqdm import tqdm

    class HiddenBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})  # type: ignore[no-untyped-call]

    return HiddenBar


class HubUnreachable(Exception):
    """The hub cannot be reached; callers fall back to the local cache."""


@contextmanager
def explain_hub_errors(repo: str, revision: str | None = None) -> Iterator[None]:
    """Within, answers of the hub that are errors become StatetrimError, and failed connections
    HubUnreachable, which is also raised at once if HF_HUB_OFFLINE is set.

    Errors of the disk, and those that do not come from the hub, are raised unchanged.
    """
    from huggingface_hub import errors, is_offline_mode

    if is_offline_mode():
        raise HubUnreachable("HF_HUB_OFFLINE is set")
    try:
        yield
    except (StatetrimError, NoSpace):
        raise
    except errors.GatedRepoError:
        raise StatetrimError(
            f"{repo} is gated: accept its terms at https://huggingface.co/{repo}, and "
            f"log in with: hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise StatetrimError(
            f"{repo} is neither a directory here nor a model on the hub that you may read; "
            f"check its name, or log in with: hf auth login"
        ) from None
    except errors.RevisionNotFoundError:
        raise StatetrimError(f"{repo} has no revision {revision!r}") from None
    except errors.LocalEntryNotFoundError:
        raise HubUnreachable("the hub cannot be reached") from None
    except errors.EntryNotFoundError as error:
        address = str(getattr(getattr(error, "response", None), "url", ""))
        name = address.partition("?")[0].rpartition("/")[2] or "file of that name"
        reason = ", so it cannot be used as a model" if name == CONFIG else ""
        raise StatetrimError(f"{repo} has no {name}{reason}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        raise StatetrimError(f"the hub answers {status} for {repo}; try again later") from None
    except Exception as error:
        of_connection = isinstance(error, OSError) and error.errno not in _DISK_ERRORS
        # The HTTP library differs between versions of huggingface_hub.
        if not of_connection and "http" not in type(error).__module__:
            raise
        raise HubUnreachable("the hub cannot be reached") from None
