"""Run an engine on one model: a driver in the engine's environment, JSON files in and out.

The driver is a child process that never outlives this one.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..artifacts.record import as_fields, parse_record
from ..errors import StatetrimError
from ..maths.units import MIB
from ..serving.engines.engine import Engine
from ..storage.json_file import read_json, write_json

MAX_ANSWER_BYTES = 256 * MIB

TokenIds = Sequence[Sequence[int]]


class EngineError(Exception):
    """The engine cannot run this model, or cannot run at all."""


@dataclass(frozen=True)
class DriverRequest:
    """The driver's input; `drivers/__init__.py` documents the fields."""

    model: str
    dtype: str
    texts: Sequence[str]
    sequences: TokenIds
    prompts: TokenIds
    generate: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class DriverAnswer:
    """The driver's output; `drivers/__init__.py` documents the fields."""

    engine: str
    encoded: TokenIds | None
    choices: TokenIds
    log_probabilities: Sequence[Sequence[float | None]]
    continuations: TokenIds


def run_engine(
    engine: Engine, python: Path, request: DriverRequest, seconds: float
) -> DriverAnswer:
    """Run the engine's driver in a process of `python`. Raises EngineError if it fails, takes
    longer than `seconds`, or answers something else."""
    program = Path(__file__).parent / "drivers" / "ask.py"
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": ""}  # it imports a neighbour
    with TemporaryDirectory(prefix="statetrim-") as folder:
        request_path, answer_path = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(request_path, as_fields(request), indent=None)
        arguments = [str(program), str(request_path), str(answer_path), engine.driver]
        with python_process(python, arguments, environment) as (process, log):
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise EngineError(f"no answer within {seconds:.0f} seconds") from None
            if process.returncode or not answer_path.exists():
                pattern, text = engine.error_pattern, log.read_text(errors="replace")
                own_message = re.search(pattern, text) if pattern else None
                if own_message is None:
                    raise EngineError(last_error(text))
                raise EngineError(" ".join(own_message.group(1).split())[:300])
        return _read_answer(answer_path, request)


def _read_answer(path: Path, request: DriverRequest) -> DriverAnswer:
    """The answer; raises EngineError if it does not cover every sequence, prompt and text."""
    try:
        answer = parse_record(read_json(path, MAX_ANSWER_BYTES), DriverAnswer, path.name)
    except StatetrimError as error:
        raise EngineError(f"an answer that does not fit the request: {error}") from None
    choice_counts = [len(ids) - 1 for ids in request.sequences]
    if (
        list(map(len, answer.choices)) != choice_counts
        or list(map(len, answer.log_probabilities)) != choice_counts
        or list(map(len, answer.continuations)) != [request.generate] * len(request.prompts)
        or (answer.encoded is not None and len(answer.encoded) != len(request.texts))
    ):
        raise EngineError("an answer that does not fit the request")
    return answer


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
    with TemporaryDirectory() as directory:
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


def last_error(log: str) -> str:
    """The last line of a log with an error, from the error's name on; else its last line."""
    lines = [line.strip() for line in log.splitlines()]
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
