"""A model on the Hugging Face hub: its config, or all that a cut needs, in the local cache.

Never downloaded: pickled weights, Python code, and weights that the index does not name.
"""

import errno
import logging
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...errors import StatetrimError
from ...maths.formatting import bytes_text
from ...progress import OnProgress, Progress, ShowProgress, progress_reporter
from ..file_names import CONFIG, INDEX, MOST_CONFIG_BYTES, MOST_INDEX_BYTES, SINGLE
from ..json_file import read_object
from ..safetensors_file import Shard
from ..space import NoSpace
from .answers import Unreachable, explained, offline
from .headers import remote_shards

_ID = re.compile(r"(\w[\w.-]*/[\w.-]+)(?:@(\w[\w./-]*))?")
_BESIDE = re.compile(
    r"[\w.-]+\.(json|jinja|tiktoken|model)|(merges|vocab)\.txt|README\.md|LICENSE[\w.-]*"
    r"|additional_chat_templates/[\w.-]+\.jinja"
)
_SECONDS = 0.2  # between two looks at how much has arrived

logger = logging.getLogger("statetrim")


@dataclass(frozen=True)
class HubModel:
    """A repository on the hub, at one of its revisions: a branch, a tag or a commit."""

    repo: str
    revision: str | None = None

    @staticmethod
    def named(text: str) -> "HubModel | None":
        """`OWNER/NAME` or `OWNER/NAME@REVISION`; None for anything else, ./MODEL included."""
        match = _ID.fullmatch(text)
        return HubModel(match[1], match[2]) if match and ".." not in text else None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"

    def config(self) -> Path:
        """Its config.json; nothing else is downloaded."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

        if offline():
            return self._cached_config("HF_HUB_OFFLINE is set")
        try:
            with explained(self.repo, self.revision):
                url = hf_hub_url(self.repo, CONFIG, revision=self.revision)
                nbytes = get_hf_file_metadata(url).size or 0
                if nbytes > MOST_CONFIG_BYTES:
                    raise StatetrimError(
                        f"the {CONFIG} of {self} has {bytes_text(nbytes)}: no config"
                    )
                return Path(hf_hub_download(self.repo, CONFIG, revision=self.revision))
        except Unreachable as error:
            found = self._cached_config(str(error))
            logger.info("%s; %s is taken from the local cache", error, self)
            return found

    def download(self, progress: ShowProgress = True) -> Path:
        """The directory with its weights, config, tokenizer and card; what is there stays."""
        if offline():
            return self._cached_weights("HF_HUB_OFFLINE is set")
        try:
            with explained(self.repo, self.revision):
                return self._downloaded(progress)
        except Unreachable as error:
            return self._cached_weights(str(error))

    def headers(self, home: Path) -> tuple[Shard, ...]:
        """The headers of its weights, as files of `home`, where its config is. The weights are not
        downloaded: a range of the first bytes of each file is."""
        if offline():
            raise self._missing("HF_HUB_OFFLINE is set")
        try:
            with explained(self.repo, self.revision):
                commit, sizes = self._files()
                return remote_shards(self.repo, commit, self._weights(sizes), home)
        except Unreachable as error:
            raise self._missing(str(error)) from None

    def _missing(self, why: str) -> StatetrimError:
        return StatetrimError(f"the weights of {self} are not in the local hub cache, and {why}")

    def _files(self) -> tuple[str | None, dict[str, int]]:
        """The commit, and the size of each of its files."""
        from huggingface_hub import HfApi

        info = HfApi().model_info(self.repo, revision=self.revision, files_metadata=True)
        return info.sha, {file.rfilename: file.size or 0 for file in info.siblings or []}

    def _downloaded(self, progress: ShowProgress) -> Path:
        from huggingface_hub import snapshot_download

        commit, sizes = self._files()
        names = [*self._weights(sizes), *(name for name in sizes if _BESIDE.fullmatch(name))]
        new = [name for name in names if self._cached(name, commit) is None]
        if new:
            nbytes = sum(sizes[name] for name in new)
            _check_space(nbytes, self)
            amount = f"{bytes_text(nbytes)} in " if nbytes else ""  # a mirror may not tell sizes
            logger.info("downloading %s: %s%d files", self, amount, len(new))
            home = _cache() / f"models--{self.repo.replace('/', '--')}"
            with (
                progress_reporter(progress, f"downloading {self.repo}") as report,
                _counting(home, nbytes, report),
            ):
                snapshot_download(self.repo, revision=self.revision, allow_patterns=names)
        config = self._cached(CONFIG, commit)
        assert config is not None, "it was just read"
        return config.parent

    def _weights(self, sizes: Mapping[str, int]) -> list[str]:
        """The weight files that count; a repository may hold others."""
        from huggingface_hub import hf_hub_download

        if sizes.get(INDEX, 0) > MOST_INDEX_BYTES:
            raise StatetrimError(f"the {INDEX} of {self} is larger than any index, so it is left")
        if INDEX in sizes:
            index = read_object(
                Path(hf_hub_download(self.repo, INDEX, revision=self.revision)), MOST_INDEX_BYTES
            )
            named = index.get("weight_map")
            files = {str(file) for file in named.values()} if isinstance(named, dict) else set()
            return sorted(
                file for file in files & set(sizes) if re.fullmatch(r"[\w.-]+\.safetensors", file)
            )
        if SINGLE not in sizes:
            raise StatetrimError(
                f"{self} has no {SINGLE} and no {INDEX}; only safetensors weights can be cut"
            )
        return [SINGLE]

    def _cached(self, name: str, revision: str | None) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo, name, revision=revision)
        return Path(found) if isinstance(found, str) else None

    def _cached_config(self, why: str) -> Path:
        found = self._cached(CONFIG, self.revision)
        if found is None:
            raise StatetrimError(
                f"{self} is neither a directory here nor in the local hub cache, and {why}"
            )
        return found

    def _cached_weights(self, why: str) -> Path:
        home = self._cached_config(why).parent
        missing = missing_weights(home)
        if missing:
            raise StatetrimError(
                f"{len(missing)} weight files of {self} are not in the local hub cache, the first "
                f"is {missing[0][:100]}, and {why}; what has arrived is kept"
            )
        return home


def missing_weights(home: Path) -> list[str]:
    """The weight files that a directory of the cache should have and does not."""
    index = home / INDEX
    named = read_object(index, MOST_INDEX_BYTES).get("weight_map") if index.exists() else None
    files = {str(file) for file in named.values()} if isinstance(named, dict) else {SINGLE}
    return sorted(file for file in files if not (home / file).exists())


@contextmanager
def _counting(directory: Path, total: int, report: OnProgress) -> Iterator[None]:
    """Within, says a few times a second how many bytes have arrived below a directory.

    The libraries below know several ways to fetch a file; all of them write it there.
    """
    ended, before = threading.Event(), _bytes_below(directory)

    def look() -> None:
        while not ended.wait(_SECONDS):
            arrived = _bytes_below(directory) - before
            report(Progress(max(0, min(arrived, total)), total, "bytes"))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
    report(Progress(total, total, "bytes"))


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.glob("blobs/*"):
        try:
            total += path.stat().st_size
        except OSError:  # renamed meanwhile
            continue
    return total


def _check_space(nbytes: int, model: HubModel) -> None:
    place = _cache()
    existing = next(path for path in (place, *place.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if nbytes > free:
        raise NoSpace(
            errno.ENOSPC,
            f"{model} needs {bytes_text(nbytes)}, and the disk of the hub cache has {bytes_text(free)} free: "
            f"{place}; HF_HOME names another place",
        )


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
