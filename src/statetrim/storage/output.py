"""Write the result of a job in `OUT.partial`, a locked directory that belongs to one job.

The record in `OUT.partial/statetrim/NAME` identifies the job. A result that is a directory is
published by renaming `OUT.partial` to `OUT`, record included; result files are moved out of it.
Running a killed job again finishes it. One process at a time writes to a directory.
"""

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..errors import StatetrimError
from ..maths.units import MIB
from .atomic import atomic_write, is_scratch, remove, sync
from .json_file import read_json, write_json
from .space import check_writable, explain_disk_errors

ARTIFACTS = "statetrim"
CARD = "README.md"
MAX_RECORD_BYTES = 64 * MIB

_PUBLISHING = "finished"  # field of a record: digests of the files that are being published
_LINKS_UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

logger = logging.getLogger("statetrim")


class Output:
    """The directory `path` to write a result to, and `publish`, which gives the result its name.

    `done` means that the result exists already, so nothing is to be written.
    """

    def __init__(
        self,
        out: Path,
        name: str,
        record: Mapping[str, Any],
        files: Mapping[str, Path] | None,
        temporary_patterns: Sequence[str],
        may_change: Collection[str],
        notes: Sequence[str],
    ) -> None:
        self.out, self.path = out, partial_path(out)
        self.done = self._belongs_to_job = False
        self._record, self._files = dict(record), files
        self._temporary_patterns, self._may_change = temporary_patterns, may_change
        self._record_path = self.path / ARTIFACTS / name
        self._notes = [self.path / note for note in notes]

    def publish(self, result: Path | None = None) -> None:
        """Rename `result` (a directory below `path`, default `path`) to `out`, or move the files.

        Files that were not written are skipped. Then remove `OUT.partial`. Raises StatetrimError if
        a target exists by now, unless it is a file of equal content.
        """
        if self._files is not None:
            digests: dict[str, str] = {}
            for name in self._files:
                if (self.path / name).exists():
                    digests[name] = file_digest(self.path / name)
            write_json(self._record_path, self._record | {_PUBLISHING: digests})
            self._move_files(digests)
            self._remove_partial()
            return
        try:
            (result or self.path).rename(self.out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise self._exists_error(self.out) from None
        sync(self.out.parent)
        if result is not None:
            self._remove_partial()

    def _prepare(self) -> None:
        """Check that `OUT.partial` is empty or of this job, clean it up, and write the record; set
        `done` if the result exists, or if a killed process had only to publish its files."""
        scratch, files = _scratch_and_files(self.path)
        stored = None
        if self._record_path in files:
            stored = read_json(self._record_path, MAX_RECORD_BYTES)
        changed = [
            field for field, value in self._record.items() if stored and stored.get(field) != value
        ]
        differing = [name for name in changed if name not in self._may_change]
        holds_work = not files <= {self._record_path, *self._notes}
        name = self._record_path.name
        if self._files is None and already_done(self.out, name, self._record):
            self.done = True
            if differing or (stored is None and files):
                return  # OUT is complete, and OUT.partial is not of this job: leave it alone
        elif differing and holds_work:
            raise StatetrimError(
                f"{self.path} is left from another job (its {differing[0]!r} differs); "
                f"remove it or choose another output"
            )
        elif stored is None and files:
            raise StatetrimError(
                f"{self.path} holds files that statetrim did not write; move it away"
            )
        for path in (*scratch, *(self._notes if differing else ())):
            remove(path)
        stored = None if differing else stored
        self._belongs_to_job = True
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

    def _files_to_publish(self, stored: Mapping[str, Any]) -> dict[str, str] | None:
        """Name -> digest of the files that a killed process was publishing; None if it was not, or
        if a file is neither in `OUT.partial` nor at its target."""
        digests, targets = stored.get(_PUBLISHING), self._files or {}
        if not isinstance(digests, dict) or not digests or not set(digests) <= set(targets):
            return None
        for name in digests:
            if not os.path.lexists(self.path / name) and not os.path.lexists(targets[name]):
                return None
        return {name: str(digest) for name, digest in digests.items()}

    def _move_files(self, digests: Mapping[str, str]) -> None:
        """Move the files in `digests` to their targets. One that exists must have its digest, as if
        a killed process had moved it before."""
        assert self._files is not None
        for name, digest in digests.items():
            source, target = self.path / name, self._files[name]
            if not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                if not _move_without_replacing(source, target):
                    raise self._exists_error(target)
            elif file_digest(target) != digest:
                raise self._exists_error(target)
        for directory in {target.parent for target in self._files.values() if target.exists()}:
            sync(directory)

    def _exists_error(self, target: Path) -> StatetrimError:
        """The error, to be raised by the caller, that `target` appeared during the job."""
        return StatetrimError(
            f"{target} appeared in the meantime and is not overwritten; the result is kept in "
            f"{self.path}"
        )

    def _remove_partial(self) -> None:
        """Delete this job's files in `OUT.partial`, and the directory if nothing else is in it.

        The record goes last: while it is there, a rerun knows whose directory it is.
        """
        paths = [self.path / name for name in self._files or ()] + self._notes
        for pattern in self._temporary_patterns:
            paths += self.path.glob(pattern)
        for path in paths:
            remove(path)
        self._record_path.unlink(missing_ok=True)
        remove_empty(self.path)
        if self.path.exists():
            logger.warning("%s holds files that statetrim did not write, so it stays", self.path)

    def _clean_up(self) -> None:
        """At the end of a run, for file results and jobs with notes, remove `OUT.partial` if
        nothing but the record and notes is left in it."""
        if self._belongs_to_job and self.path.exists():
            holds_no_work = _scratch_and_files(self.path)[1] <= {self._record_path, *self._notes}
            if holds_no_work and (self._files is not None or self._notes):
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
    notes: Sequence[str] = (),
) -> Iterator[Output]:
    """Lock `OUT.partial` for the job that `record` describes, and yield it as an `Output`.

    The result is the directory `out`, or with `files` (name -> target path) those of these files
    that are written. `temporary_patterns` are glob patterns below `OUT.partial` of files to delete
    at the end. A rerun may differ from the run that it finishes in the fields `may_change` of the
    record. `notes` are files below `OUT.partial` that are no part of a result: another job may take
    a directory that holds nothing else. If the directory `out` is the result of this job, or a
    killed run had only to publish its files, `done` is True. Raises StatetrimError if the target
    exists otherwise, if `OUT.partial` is of another job, or if another process writes.
    """
    work = Output(Path(out), name, record, files, temporary_patterns, may_change, notes)
    # Without leftovers, existing results are found before locking.
    if not os.path.lexists(work.path):
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
    """An artifact that writes itself to a file."""

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
    """Call `make`, save the artifact it returns as `out`, and return it.

    `make` gets the directory `OUT.partial`: there it may keep intermediate results whose names
    match `temporary_patterns`, and write `extra_files` (name -> target path), which are published
    with the result. If a killed process had finished, the artifact is loaded instead. Raises
    StatetrimError if `out` or a target exists. With `out=None` nothing is saved and `make` gets
    None.
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
    """`OUT.partial`, where `out` is written; raises StatetrimError for a path without a name."""
    named = out if out.name not in ("", "..") else out.resolve()
    if not named.name:
        raise StatetrimError(f"{out} cannot be an output; name a file or directory in it")
    return named.with_name(named.name + ".partial")


def finished(out: Path) -> bool:
    """Whether `out` exists, and `OUT.partial` holds no file; empty directories, which a killed
    process may have left there, do not count."""
    return out.exists() and not any(names for _, _, names in os.walk(partial_path(out)))


def check_absent(*targets: Path) -> None:
    """Raise StatetrimError if one of `targets` exists, even as a broken link."""
    for target in targets:
        if os.path.lexists(target):
            raise StatetrimError(
                f"{target} exists already and is not overwritten; choose another name or move it"
            )


def already_done(out: Path, name: str, record: Mapping[str, Any]) -> bool:
    """Whether `out` is the result of this job; raises StatetrimError if it is anything else."""
    path = out / ARTIFACTS / name
    if path.is_file() and record.items() <= read_json(path, MAX_RECORD_BYTES).items():
        return True
    check_absent(out)
    return False


def _scratch_and_files(partial: Path) -> tuple[list[Path], set[Path]]:
    """Scratch directories of a killed process, and all other files."""
    scratch: list[Path] = []
    files: set[Path] = set()
    for parent, directories, names in os.walk(partial):
        for name in [*directories]:
            path = Path(parent, name)
            if path.is_symlink():
                raise StatetrimError(f"{path} is a link to a directory; move {partial} away")
            if is_scratch(path):
                scratch.append(path)
                directories.remove(name)  # os.walk does not enter it
        files.update(Path(parent, name) for name in names)
    return scratch, files


def _move_without_replacing(source: Path, target: Path) -> bool:
    """Move a file and return True; return False, with `source` unchanged, if `target` exists."""
    try:
        os.link(source, target)  # unlike a rename, a link never replaces a file
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _LINKS_UNSUPPORTED:
            raise
        if os.path.lexists(target):
            return False
        with atomic_write(target) as scratch:
            shutil.copyfile(source, scratch)
    source.unlink()
    return True


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(partial: Path) -> Iterator[None]:
    """Hold an exclusive lock on the directory `partial`, which is created, and removed if empty.

    Parents that had to be created are removed too if they are empty. Raises StatetrimError, without
    waiting, if another process holds the lock, if `partial` is a file or a link, and on Windows.
    """
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise StatetrimError(f"{partial} is not a directory that statetrim made; move it away")
    try:
        import fcntl
    except ImportError:
        raise StatetrimError(
            "on Windows statetrim only inspects models, because nothing locks a directory that "
            "it writes there; run it in WSL, on Linux or on macOS"
        ) from None
    new_parents = [parent for parent in partial.parents if not parent.exists()]
    partial.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), partial.stat()):
                raise FileNotFoundError  # the other process has just finished
        except (BlockingIOError, FileNotFoundError):
            raise StatetrimError(
                f"another process is writing {partial.with_suffix('')}; wait for it or choose "
                f"another output"
            ) from None
        try:
            yield
        finally:
            remove_empty(partial)  # still locked, so no other process has started to write there
            for parent in new_parents:
                with suppress(OSError):
                    parent.rmdir()


def remove_empty(directory: Path) -> None:
    """Remove the directory if it holds nothing but empty directories.

    Otherwise it stays, though some of the empty directories in it may be removed.
    """
    for path in (*sorted(directory.rglob("*"), reverse=True), directory):
        try:
            path.rmdir()
        except OSError:
            return
