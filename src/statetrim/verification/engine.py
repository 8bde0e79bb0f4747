"""Run an engine on one model: a driver in the engine's environment, JSON files in and out."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..artifacts.record import as_fields, parse_record
from ..errors import StatetrimError
from ..maths.units import MIB
from ..runtime.child_process import last_error, python_process
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
                raise EngineError(_failure_reason(log, engine.error_pattern))
        return _read_answer(answer_path, request)


def _failure_reason(log: Path, pattern: str) -> str:
    """The engine's own message in the log, by `pattern`, or else the last error."""
    match = re.search(pattern, log.read_text(errors="replace")) if pattern else None
    return " ".join(match.group(1).split())[:300] if match else last_error(log)


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
