"""Where the result of a job grows: `OUT.partial`, which is locked and belongs to that very job.

A job is known by its record, which lies there as `statetrim/NAME`. A result that is a directory
takes its name by renaming `OUT.partial`, record and all; one that is files is moved out of it. A
job that was killed is finished by running it again.
"""

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..errors import StatetrimError
from ..maths.units import MIB
from .atomic import is_scratch, replacing, sync_directory
from .json_file import read_object, write_object
from .lock import AT_WORK, locked, remove_empty, sign
from .space import check_writable, explained

ARTIFACTS = "statetrim"
CARD = "README.md"
MOST_RECORD_BYTES = 64 * MIB

_FINISHED = "finished"  # in a record: the files that are being moved to their places
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

logger = logging.getLogger("statetrim")


class Output:
    """What `output` yields: a place to write to, and its last step."""

    def __init__(
        self,
        out: Path,
        name: str,
        record: Mapping[str, Any],
        files: Mapping[str, Path] | None,
        ours: Sequence[str],
        free: Collection[str],
    ) -> None:
        self.out, self.path = out, partial_of(out)
        self.done = self._claimed = False
        self._record, self._files, self._ours = dict(record), files, ours
        self._free = free
        self._record_path = self.path / ARTIFACTS / name

    def publish(self, result: Path | None = None) -> None:
        """Give the result its name: a directory below `path` (else `path` itself), or the files."""
        if self._files is not None:
            written = {name: self.path / name for name in self._files}
            found = {name: _digest(path) for name, path in written.items() if path.exists()}
            write_object(self._record_path, self._record | {_FINISHED: found})
            self._move_files(found)
            self._remove()
            return
        (self.path / AT_WORK).unlink(missing_ok=True)
        try:
            (result or self.path).rename(self.out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise self._exists(self.out) from None
        sync_directory(self.out.parent)
        if result is not None:
            self._remove()

    def _claim(self) -> None:
        """Make sure that the place is this job's, and that its result is not there yet."""
        scratch, files = _contents(self.path)
        stored = None
        if self._record_path in files:
            stored = read_object(self._record_path, MOST_RECORD_BYTES)
        changed = [n for n, value in self._record.items() if stored and stored.get(n) != value]
        differing = [name for name in changed if name not in self._free]
        name = self._record_path.name
        if self._files is None and already_done(self.out, name, self._record):
            self.done = True
            if differing or (stored is None and files):
                return  # what lies beside the result is not ours
        elif differing:
            raise StatetrimError(
                f"{self.path} is left from another job (its {differing[0]!r} differs); "
                f"remove it or choose another output"
            )
        elif stored is None and files:
            raise StatetrimError(
                f"{self.path} holds files that statetrim did not write; move it away"
            )
        for path in scratch:
            shutil.rmtree(path)
        self._claimed = True
        if self._files is not None:
            found = self._finished(stored or {})
            if found is None:
                refuse_existing(*self._files.values())
            else:
                self._move_files(found)
                self.done = True
        if self.done:
            self._remove()
            return
        if stored is None or changed:
            self._record_path.parent.mkdir(exist_ok=True)
            write_object(self._record_path, self._record)
        sign(self.path, str(self._record.get("format")))

    def _finished(self, stored: Mapping[str, Any]) -> dict[str, str] | None:
        """Digests of the files that a killed process was giving their names, if all are here."""
        found, places = stored.get(_FINISHED), self._files or {}
        if not isinstance(found, dict) or not found or not set(found) <= set(places):
            return None
        whole = all(_is_there(self.path / name) or _is_there(places[name]) for name in found)
        return {name: str(digest) for name, digest in found.items()} if whole else None

    def _move_files(self, digests: Mapping[str, str]) -> None:
        """Also those of a killed process: what has its name already is what was meant to."""
        assert self._files is not None
        for name, digest in digests.items():
            source, target = self.path / name, self._files[name]
            if not _is_there(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                if not _move(source, target):
                    raise self._exists(target)
            elif _digest(target) != digest:
                raise self._exists(target)
        for directory in {target.parent for target in self._files.values() if target.exists()}:
            sync_directory(directory)

    def _exists(self, target: Path) -> StatetrimError:
        return StatetrimError(
            f"{target} appeared in the meantime and is not overwritten; the result is kept in "
            f"{self.path}"
        )

    def _remove(self) -> None:
        """Remove what is ours and not needed any more; the record last, so that it stays ours."""
        found = [self.path / name for name in (AT_WORK, *(self._files or ()))]
        found += [path for pattern in self._ours for path in self.path.glob(pattern)]
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._record_path.unlink(missing_ok=True)
        remove_empty(self.path)
        if self.path.exists():
            logger.warning("%s holds files that statetrim did not write, so it stays", self.path)

    def _leave(self) -> None:
        """After a failure: files that nothing was done for leave no trace."""
        if self._claimed and self.path.exists():
            (self.path / AT_WORK).unlink(missing_ok=True)
            if self._files is not None and _contents(self.path)[1] <= {self._record_path}:
                self._remove()


@contextmanager
def output(
    out: str | Path,
    name: str,
    record: Mapping[str, Any],
    *,
    files: Mapping[str, Path] | None = None,
    ours: Sequence[str] = (),
    free: Collection[str] = (),
) -> Iterator[Output]:
    """The place of a job, locked; `done` where its result is there already and is not overwritten.

    With `files` the result is not a directory but those of these names that are written, each with
    the place it is for. `ours` are patterns of names below `OUT.partial` that do not stay, `free`
    the fields of the record in which a rerun may differ from the run that it finishes.
    """
    work = Output(Path(out), name, record, files, ours, free)
    if not _is_there(work.path):  # nothing is written where the answer is clear
        if files is not None:
            refuse_existing(*files.values())
        elif already_done(work.out, name, record):
            work.done = True
            yield work
            return
    for place in (work.path, *(files or {}).values()):
        check_writable(place)
    with locked(work.path), explained(work.path):
        try:
            work._claim()
            yield work
        finally:
            work._leave()


class Saved(Protocol):
    def save(self, path: str | Path) -> None: ...


Artifact = TypeVar("Artifact", bound=Saved)


def saved(
    out: str | Path | None,
    record: Mapping[str, Any],
    make: Callable[[Path | None], Artifact],
    load: Callable[[Path], Artifact],
    ours: Sequence[str] = (),
    beside: Mapping[str, Path] | None = None,
) -> Artifact:
    """What `make` gives, saved as the file `out`; loaded, where a killed process had just done it.

    `make` is given a directory where it may keep what it has so far, under the names of `ours`,
    and files that appear with the result, each in its place, under those of `beside`. Nothing is
    saved where `out` is None, and there is no such directory.
    """
    if out is None:
        return make(None)
    out = Path(out)
    files = {"result": out, **(beside or {})}
    with output(out, "job.json", record, files=files, ours=ours) as work:
        if work.done:
            return load(out)
        artifact = make(work.path)
        artifact.save(work.path / "result")
        work.publish()
        return artifact


def partial_of(out: Path) -> Path:
    """Where `out` grows."""
    whole = out if out.name not in ("", "..") else out.resolve()
    if not whole.name:
        raise StatetrimError(f"{out} cannot be an output; name a file or directory in it")
    return whole.with_name(whole.name + ".partial")


def complete(out: Path) -> bool:
    """Whether `out` is there and nothing is left of its making, except empty directories, which
    are removed; for those who hold the lock of the directory it is in."""
    remove_empty(partial_of(out))
    return out.exists() and not partial_of(out).exists()


def refuse_existing(*targets: Path) -> None:
    for target in targets:
        if _is_there(target):
            raise StatetrimError(
                f"{target} exists already and is not overwritten; choose another name or move it"
            )


def already_done(out: Path, name: str, record: Mapping[str, Any]) -> bool:
    """Whether the directory `out` is the result of this very job; anything else is refused."""
    path = out / ARTIFACTS / name
    if path.is_file() and record.items() <= read_object(path, MOST_RECORD_BYTES).items():
        return True
    refuse_existing(out)
    return False


def _contents(partial: Path) -> tuple[list[Path], set[Path]]:
    """What a killed process was writing, and the files that are there."""
    scratch, files = [], set()
    for place, directories, names in os.walk(partial):
        inner = [Path(place, name) for name in directories]
        if links := [path for path in inner if path.is_symlink()]:
            raise StatetrimError(f"{links[0]} is a link to a directory; move {partial} away")
        scratch += [path for path in inner if is_scratch(path)]
        directories[:] = [path.name for path in inner if not is_scratch(path)]
        files |= {Path(place, name) for name in names if name != AT_WORK}
    return scratch, files


def _move(source: Path, target: Path) -> bool:
    """Give a file a name that is free; False where it is not."""
    try:
        os.link(source, target)  # unlike a rename, it never replaces
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if _is_there(target):
            return False
        with replacing(target) as written:
            shutil.copyfile(source, written)
    source.unlink()
    return True


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
