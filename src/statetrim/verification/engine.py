"""Run an engine on one model: a driver in the engine's environment, JSON files in and out."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..artifacts.record import as_fields, parse_record
from ..errors import StatetrimError
from ..maths.units import MIB
from ..runtime.child_process import last_error, python_process
from ..storage.json_file import read_json, write_json

MAX_ANSWER_BYTES = 256 * MIB
_LOAD_ERROR = re.compile(r"error loading model: (.+)")

Sequences = Sequence[Sequence[int]]


class EngineError(Exception):
    """The engine cannot run this model, or cannot run at all."""


@dataclass(frozen=True)
class Request:
    """The driver's input; `drivers/__init__.py` documents the fields."""

    model: str
    dtype: str
    texts: Sequence[str]
    sequences: Sequences
    prompts: Sequences
    generate: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """The driver's output; `drivers/__init__.py` documents the fields."""

    engine: str
    encoded: Sequences | None
    choices: Sequences
    log_probabilities: Sequence[Sequence[float | None]]
    continuations: Sequences


def run_engine(engine: str, python: Path, request: Request, seconds: float) -> Answer:
    """Run the engine's driver in a process of `python` and return its answer.

    Raises EngineError if the process fails, takes longer than `seconds`, or its answer does not fit
    the request; StatetrimError if `python` is no program.
    """
    driver = files(__package__) / "drivers" / f"ask_{engine}.py"
    with TemporaryDirectory(prefix="statetrim-") as folder, as_file(driver) as program:
        request_path, answer_path = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(request_path, as_fields(request), indent=None)
        arguments = [str(program), str(request_path), str(answer_path)]
        with python_process(python, arguments, {"PYTHONDONTWRITEBYTECODE": "1"}) as (process, log):
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise EngineError(f"no answer within {seconds:.0f} seconds") from None
            if process.returncode or not answer_path.exists():
                raise EngineError(_failure_reason(log))
        return _read_answer(answer_path, request)


def _failure_reason(log: Path) -> str:
    """llama.cpp's own message in the log, which no Python exception holds, else the last error;
    at most 300 characters."""
    match = _LOAD_ERROR.search(log.read_text(errors="replace"))
    return " ".join(match.group(1).split())[:300] if match else last_error(log)


def _read_answer(path: Path, request: Request) -> Answer:
    """The answer; raises EngineError if it does not cover every sequence, prompt and text."""
    try:
        answer = parse_record(read_json(path, MAX_ANSWER_BYTES), Answer, path.name)
    except StatetrimError as error:
        raise EngineError(f"an answer that does not fit the request: {error}") from None
    if not _is_complete(answer, request):
        raise EngineError("an answer that does not fit the request")
    return answer


def _is_complete(answer: Answer, request: Request) -> bool:
    """Whether all rows have the requested number and length, and all tokens are int.

    `encoded` may be None; the length of its rows, and log-probabilities, are not checked.
    """
    choice_counts = [len(ids) - 1 for ids in request.sequences]
    return (
        list(map(len, answer.choices)) == choice_counts
        and list(map(len, answer.log_probabilities)) == choice_counts
        and list(map(len, answer.continuations)) == [request.generate] * len(request.prompts)
        and (answer.encoded is None or len(answer.encoded) == len(request.texts))
    )
