"""Run the Python of another environment as a child process that never outlives this one."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import StatetrimError

_SUPERVISOR_CODE = """
import os, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, lambda *_: None)  # the program ends first
program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
alone = threading.Event()

def watch():
    sys.stdin.buffer.read()  # until we are gone, however we ended
    alone.set()
    os.killpg(0, signal.SIGTERM)
    try:
        program.wait(10)
    finally:
        os.killpg(0, signal.SIGKILL)

threading.Thread(target=watch, daemon=True).start()
code = program.wait()
if alone.is_set():
    os.killpg(0, signal.SIGKILL)  # with what it had started
os._exit(code % 256)
"""

Process = subprocess.Popen[bytes]


@contextmanager
def python_process(
    python: Path, arguments: Sequence[str], extra_environment: Mapping[str, str]
) -> Iterator[tuple[Process, Path]]:
    """Within, `python` runs with `arguments`, in a temporary directory. Yields the process, whose
    return code is that of `python`, and the log file of its output, which is deleted on exit.

    It has no PYTHONPATH and no access to the hub. On exit, or if this process is killed, it is
    terminated with all processes it started. Refuses a `python` that is not a program.
    """
    program = shutil.which(python)
    if program is None:
        raise StatetrimError(f"{python} cannot be started: it is not a program")
    command = [
        sys.executable, "-I", "-S", "-c", _SUPERVISOR_CODE,
        str(Path(program).absolute()), *arguments,
    ]  # fmt: skip
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    environment |= {"HF_HUB_OFFLINE": "1", **extra_environment}
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )
        try:
            yield process, log
        finally:
            _terminate(process)


def last_error(log: Path) -> str:
    """The last line of a log with an error, from the error's name on; else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line]
    last = (errors or lines or ["it printed nothing"])[-1]
    start = last.rfind(" ", 0, max(0, last.find("Error"))) + 1
    return last[start : start + 300]


def _terminate(process: Process) -> None:
    """End the child and all it started, a process group: SIGTERM, 20 seconds later SIGKILL."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(timeout=20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    assert process.stdin is not None
    process.stdin.close()
