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
from .atomic import atomic_write, is_scratch, sync_directory
from .json_file import read_json, write_json
from .lock import OWNER_FILE, locked, remove_empty, write_owner
from .space import check_writable, explain_disk_errors

ARTIFACTS = "statetrim"
CARD = "README.md"
MAX_RECORD_BYTES = 64 * MIB

_PUBLISHING = "finished"  # in a record: the files that are being moved to their places
_LINKS_UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

logger = logging.getLogger("statetrim")


class Output:
    """What `output` yields: a place to write to, and its last step."""

    def __init__(
        self,
        out: Path,
        name: str,
        record: Mapping[str, Any],
        files: Mapping[str, Path] | None,
        temporary_patterns: Sequence[str],
        may_change: Collection[str],
    ) -> None:
        self.out, self.path = out, partial_path(out)
        self.done = self._is_ours = False
        self._record, self._files, self._temporary_patterns = (
            dict(record),
            files,
            temporary_patterns,
        )
        self._may_change = may_change
        self._record_path = self.path / ARTIFACTS / name

    def publish(self, result: Path | None = None) -> None:
        """Give the result its name: a directory below `path` (else `path` itself), or the files."""
        if self._files is not None:
            written = {name: self.path / name for name in self._files}
            digests = {name: _sha256(path) for name, path in written.items() if path.exists()}
            write_json(self._record_path, self._record | {_PUBLISHING: digests})
            self._move_files(digests)
            self._remove_partial()
            return
        (self.path / OWNER_FILE).unlink(missing_ok=True)
        try:
            (result or self.path).rename(self.out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise self._exists_error(self.out) from None
        sync_directory(self.out.parent)
        if result is not None:
            self._remove_partial()

    def _prepare(self) -> None:
        """Make sure that the place is this job's, and that its result is not there yet."""
        scratch, files = _scratch_and_files(self.path)
        stored = None
        if self._record_path in files:
            stored = read_json(self._record_path, MAX_RECORD_BYTES)
        changed = [
            field for field, value in self._record.items() if stored and stored.get(field) != value
        ]
        differing = [name for name in changed if name not in self._may_change]
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
        self._is_ours = True
        if self._files is not None:
            digests = self._files_to_publish(stored or {})
            if digests is None:
                check_absent(*self._files.values())
            else:
                self._move_files(digests)
                self.done = True
        if self.done:
            self._remove_partial()
            return
        if stored is None or changed:
            self._record_path.parent.mkdir(exist_ok=True)
            write_json(self._record_path, self._record)
        write_owner(self.path, str(self._record.get("format")))

    def _files_to_publish(self, stored: Mapping[str, Any]) -> dict[str, str] | None:
        """Digests of the files that a killed process was giving their names, if all are here."""
        digests, targets = stored.get(_PUBLISHING), self._files or {}
        if not isinstance(digests, dict) or not digests or not set(digests) <= set(targets):
            return None
        all_exist = all(_lexists(self.path / name) or _lexists(targets[name]) for name in digests)
        return {name: str(digest) for name, digest in digests.items()} if all_exist else None

    def _move_files(self, digests: Mapping[str, str]) -> None:
        """Also those of a killed process: what has its name already is what was meant to."""
        assert self._files is not None
        for name, digest in digests.items():
            source, target = self.path / name, self._files[name]
            if not _lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                if not _move_without_replacing(source, target):
                    raise self._exists_error(target)
            elif _sha256(target) != digest:
                raise self._exists_error(target)
        for directory in {target.parent for target in self._files.values() if target.exists()}:
            sync_directory(directory)

    def _exists_error(self, target: Path) -> StatetrimError:
        return StatetrimError(
            f"{target} appeared in the meantime and is not overwritten; the result is kept in "
            f"{self.path}"
        )

    def _remove_partial(self) -> None:
        """Remove what is ours and not needed any more; the record last, so that it stays ours."""
        paths = [self.path / name for name in (OWNER_FILE, *(self._files or ()))]
        paths += [path for pattern in self._temporary_patterns for path in self.path.glob(pattern)]
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._record_path.unlink(missing_ok=True)
        remove_empty(self.path)
        if self.path.exists():
            logger.warning("%s holds files that statetrim did not write, so it stays", self.path)

    def _clean_up(self) -> None:
        """After a failure: files that nothing was done for leave no trace."""
        if self._is_ours and self.path.exists():
            (self.path / OWNER_FILE).unlink(missing_ok=True)
            if self._files is not None and _scratch_and_files(self.path)[1] <= {self._record_path}:
                self._remove_partial()


@contextmanager
def open_output(
    out: str | Path,
    name: str,
    record: Mapping[str, Any],
    *,
    files: Mapping[str, Path] | None = None,
    temporary_patterns: Sequence[str] = (),
    may_change: Collection[str] = (),
) -> Iterator[Output]:
    """The place of a job, locked; `done` where its result is there already and is not overwritten.

    With `files` the result is not a directory but those of these names that are written, each with
    the place it is for. `ours` are patterns of names below `OUT.partial` that do not stay, `free`
    the fields of the record in which a rerun may differ from the run that it finishes.
    """
    work = Output(Path(out), name, record, files, temporary_patterns, may_change)
    if not _lexists(work.path):  # nothing is written where the answer is clear
        if files is not None:
            check_absent(*files.values())
        elif already_done(work.out, name, record):
            work.done = True
            yield work
            return
    for target in (work.path, *(files or {}).values()):
        check_writable(target)
    with locked(work.path), explain_disk_errors(work.path):
        try:
            work._prepare()
            yield work
        finally:
            work._clean_up()


class Savable(Protocol):
    def save(self, path: str | Path) -> None: ...


Artifact = TypeVar("Artifact", bound=Savable)


def run_and_save(
    out: str | Path | None,
    record: Mapping[str, Any],
    make: Callable[[Path | None], Artifact],
    load: Callable[[Path], Artifact],
    temporary_patterns: Sequence[str] = (),
    extra_files: Mapping[str, Path] | None = None,
) -> Artifact:
    """What `make` gives, saved as the file `out`; loaded, where a killed process had just done it.

    `make` is given a directory where it may keep what it has so far, under the names of `ours`,
    and files that appear with the result, each in its place, under those of `beside`. Nothing is
    saved where `out` is None, and there is no such directory.
    """
    if out is None:
        return make(None)
    out = Path(out)
    files = {"result": out, **(extra_files or {})}
    with open_output(
        out, "job.json", record, files=files, temporary_patterns=temporary_patterns
    ) as work:
        if work.done:
            return load(out)
        artifact = make(work.path)
        artifact.save(work.path / "result")
        work.publish()
        return artifact


def partial_path(out: Path) -> Path:
    """Where `out` grows."""
    named = out if out.name not in ("", "..") else out.resolve()
    if not named.name:
        raise StatetrimError(f"{out} cannot be an output; name a file or directory in it")
    return named.with_name(named.name + ".partial")


def is_complete(out: Path) -> bool:
    """Whether `out` is there and nothing is left of its making, except empty directories, which
    are removed; for those who hold the lock of the directory it is in."""
    remove_empty(partial_path(out))
    return out.exists() and not partial_path(out).exists()


def check_absent(*targets: Path) -> None:
    for target in targets:
        if _lexists(target):
            raise StatetrimError(
                f"{target} exists already and is not overwritten; choose another name or move it"
            )


def already_done(out: Path, name: str, record: Mapping[str, Any]) -> bool:
    """Whether the directory `out` is the result of this very job; anything else is refused."""
    path = out / ARTIFACTS / name
    if path.is_file() and record.items() <= read_json(path, MAX_RECORD_BYTES).items():
        return True
    check_absent(out)
    return False


def _scratch_and_files(partial: Path) -> tuple[list[Path], set[Path]]:
    """What a killed process was writing, and the files that are there."""
    scratch, files = [], set()
    for directory, directories, names in os.walk(partial):
        inner = [Path(directory, name) for name in directories]
        if links := [path for path in inner if path.is_symlink()]:
            raise StatetrimError(f"{links[0]} is a link to a directory; move {partial} away")
        scratch += [path for path in inner if is_scratch(path)]
        directories[:] = [path.name for path in inner if not is_scratch(path)]
        files |= {Path(directory, name) for name in names if name != OWNER_FILE}
    return scratch, files


def _move_without_replacing(source: Path, target: Path) -> bool:
    """Give a file a name that is free; False where it is not."""
    try:
        os.link(source, target)  # unlike a rename, it never replaces
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _LINKS_UNSUPPORTED:
            raise
        if _lexists(target):
            return False
        with atomic_write(target) as scratch:
            shutil.copyfile(source, scratch)
    source.unlink()
    return True


def _lexists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
