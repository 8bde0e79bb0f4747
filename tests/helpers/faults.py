"""Runs commands in forked children, with a fault at a chosen filesystem event, counted from 1.

A fault is a kill (SIGKILL), a stop (SIGSTOP) or a disk that is full from that event on. Events are
changes of files: Python's audit hook reports most of them before they happen; the others (a file
just created, fsync, copies inside the kernel, the writes of safetensors) are wrapped functions.
"""

import builtins
import ctypes
import errno
import hashlib
import importlib
import io
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from helpers.forker import fork
from statetrim.commands import main

Fault = Literal["kill", "stop", "full"]
Command = Sequence[str] | Callable[[], None]
"""The arguments of a command, or a function of this process."""

_CHANGES = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.utime",
}  # fmt: skip
_TEMPORARY_NAME = re.compile(r"\.statetrim-[^/]*\.tmp|\.tmp[A-Za-z0-9]{6}")


@dataclass
class CommandResult:
    """Exit code and output of a command, and a hash of the files before each of its events."""

    code: int
    out: str
    err: str
    states: list[str] = field(default_factory=list)


@dataclass
class _Watch:
    """Counts the filesystem events of this process below `root`, and triggers the fault."""

    root: str
    fault_at: int | None
    fault: Fault
    record_state: Callable[[], None] | None
    count: int = 0
    recording: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def event(self, path: Any) -> None:
        """Count one event. Locked, because prune syncs its files in a thread; events caused by
        recording the state are not counted."""
        with self.lock:
            if not self.recording and self._is_below_root(path):
                self._count(path)

    def _count(self, path: Any) -> None:
        self.count += 1
        if self.record_state is not None:
            self.recording = True
            self.record_state()
            self.recording = False
        if self.fault_at is None or self.count < self.fault_at:
            return
        if self.fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.count == self.fault_at:
            os.kill(os.getpid(), signal.SIGKILL if self.fault == "kill" else signal.SIGSTOP)

    def _is_below_root(self, path: Any) -> bool:
        if isinstance(path, int):
            path = f"/proc/self/fd/{path}"
            path = os.readlink(path) if os.path.islink(path) else ""
        try:
            return os.path.abspath(os.fsdecode(path)).startswith(self.root)
        except TypeError:
            return False


_active_watch: list[_Watch] = []


def _audit_hook(event: str, args: tuple[Any, ...]) -> None:
    if not _active_watch:
        return
    if event in _CHANGES:
        # The path that changes: the target of a rename or link, else the first argument.
        _active_watch[0].event(
            args[1] if event in ("os.rename", "os.link", "os.symlink") else args[0]
        )
    elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
        _active_watch[0].event(args[0])


def install() -> None:
    """Install the hooks, once in the parent; they do nothing until a child sets `_active_watch`."""
    sys.addaudithook(_audit_hook)
    for module, name in ((io, "open"), (builtins, "open")):
        setattr(module, name, _wrap_open(getattr(module, name)))
    for name in ("fsync", "copy_file_range", "write"):
        setattr(os, name, _wrap_before(getattr(os, name), 1 if name == "copy_file_range" else 0))
    files: Any = importlib.import_module("statetrim.storage.safetensors_file")
    files.save_file = _wrap_save_file(files.save_file)


def _wrap_open(stock: Any) -> Any:
    """Adds an event after a file was opened for writing, when it exists and is empty."""

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        result = stock(file, mode, *args, **kwargs)
        if _active_watch and set(mode) & set("wxa+"):
            _active_watch[0].event(file)
        return result

    return opened


def _wrap_before(stock: Any, path_index: int) -> Any:
    def changed(*args: Any, **kwargs: Any) -> Any:
        if _active_watch:
            _active_watch[0].event(args[path_index])
        return stock(*args, **kwargs)

    return changed


def _wrap_save_file(stock: Any) -> Any:
    """Adds an event while safetensors' temporary file is half written, and one after saving."""
    from safetensors import SafetensorError

    def saved(tensors: Any, path: Any, metadata: Any = None) -> Any:
        if not _active_watch:
            return stock(tensors, path, metadata)
        half = Path(path).with_name(".tmpAbC123")
        try:
            half.write_bytes(b"half")
            _active_watch[0].event(path)
            half.unlink()
        except OSError as error:
            raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from None
        stock(tensors, path, metadata)
        _active_watch[0].event(path)

    return saved


@dataclass
class Child:
    """A running command."""

    pid: int
    files: tuple[IO[bytes], ...]

    def wait(self) -> CommandResult:
        _, status = os.waitpid(self.pid, 0)
        texts = []
        for file in self.files:
            with file:
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        out, err, states = texts
        return CommandResult(os.waitstatus_to_exitcode(status), out, err, states.split())

    def wait_until_stopped(self) -> bool:
        """Wait until the command stops at its fault; False if it ended before that."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        return os.WIFSTOPPED(status)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def start(
    command: Command,
    root: Path,
    *,
    fault_at: int | None = None,
    fault: Fault = "kill",
    record: bool = False,
    without_privileges: bool = False,
) -> Child:
    """Start a command, or a function, in `root`; with `record`, it notes a hash of the files before
    each event."""
    out, err, states = (tempfile.TemporaryFile() for _ in range(3))  # noqa: SIM115
    inputs = {path.name for path in root.iterdir()}

    def record_state() -> None:
        states.write(f"{tree_hash(root, inputs)}\n".encode())
        states.flush()

    def work() -> None:
        os.chdir(root)
        if without_privileges:
            drop_privileges()
        recorder = record_state if record else None
        _active_watch.append(_Watch(str(root.resolve()), fault_at, fault, recorder))
        try:
            if callable(command):
                command()
            else:
                sys.argv = ["statetrim", *command]
                main()
        finally:
            _active_watch.clear()

    return Child(fork(work, out, err), (out, err, states))


def run(command: Command, root: Path, **options: Any) -> CommandResult:
    """Run a command in `root`, with the options of `start`, until it ends or is killed."""
    return start(command, root, **options).wait()


def file_hashes(root: Path, ignored: Collection[str] = ()) -> dict[str, str]:
    """Every path below `root` with a hash of its content (or its kind), except the `ignored`
    entries of `root` and what is in them."""
    hashes = {}
    # Not below the ignored entries: a run asks this before each of its events.
    entries = [entry for entry in root.iterdir() if entry.name not in ignored]
    for path in (path for entry in entries for path in (entry, *entry.rglob("*"))):
        name = str(path.relative_to(root))
        if path.is_symlink():
            hashes[name] = f"link {os.readlink(path)}"
        elif path.is_file():
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            hashes[name] = "directory"
    return hashes


def tree_hash(root: Path, inputs: Collection[str]) -> str:
    """A hash of what is below `root` except `inputs`; the random part of temporary names does not
    count."""
    while True:
        try:
            hashes = file_hashes(root, inputs)
            break
        except FileNotFoundError:  # another thread renamed a file meanwhile
            continue
    state = sorted(
        (_TEMPORARY_NAME.sub("scratch", name), content) for name, content in hashes.items()
    )
    return hashlib.sha256(repr(state).encode()).hexdigest()


def drop_privileges() -> None:
    """Give up the superuser's capabilities, which allow writing to read-only directories."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)(*[0] * 6)
    ctypes.CDLL(None).capset(header, nothing)
