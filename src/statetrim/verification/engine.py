"""One question to an engine, asked in its own environment: a file of JSON in, a file out."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast, get_args

from ..errors import StatetrimError
from ..maths.units import MIB
from ..runtime.child_process import last_error, python_process
from ..storage.json_file import read_json, write_json

Engine = Literal["mlx", "vllm", "llamacpp"]
ENGINE_NAMES: dict[Engine, str] = {"mlx": "MLX-LM", "vllm": "vLLM", "llamacpp": "llama.cpp"}
MAX_ANSWER_BYTES = 256 * MIB
_LOAD_ERROR = re.compile(r"error loading model: (.+)")

Sequences = Sequence[Sequence[int]]


class EngineError(Exception):
    """The engine ended with an error: it cannot run this model, or cannot run at all."""


@dataclass(frozen=True)
class Request:
    """What an engine is asked; `drivers` says what each field means."""

    model: str
    dtype: str
    texts: Sequence[str]
    sequences: Sequences
    prompts: Sequences
    generate: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    engine: str  # names and versions
    encoded: Sequences | None
    choices: Sequences
    log_probabilities: Sequence[Sequence[float | None]]
    continuations: Sequences


def parse_engine(name: str) -> Engine:
    for engine in get_args(Engine):
        if name == engine:
            return cast(Engine, engine)
    raise StatetrimError(f"there is no engine {name!r}; choose {', '.join(get_args(Engine))}")


def run_engine(engine: Engine, python: Path, request: Request, seconds: float) -> Answer:
    """Start the engine, ask, and end it; `EngineFailed` where it cannot."""
    driver = files(__package__) / "drivers" / f"ask_{engine}.py"
    with TemporaryDirectory(prefix="statetrim-") as folder, as_file(driver) as program:
        request_path, answer_path = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(request_path, asdict(request), indent=None)
        arguments = [str(program), str(request_path), str(answer_path)]
        with python_process(python, arguments, {"PYTHONDONTWRITEBYTECODE": "1"}) as (process, log):
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise EngineError(f"no answer within {seconds:.0f} seconds") from None
            if process.returncode or not answer_path.exists():
                raise EngineError(_failure_reason(log))
        return _parse_answer(read_json(answer_path, MAX_ANSWER_BYTES), request)


def _failure_reason(log: Path) -> str:
    """What the engine said; llama.cpp's own word where Python only knows that it failed."""
    match = _LOAD_ERROR.search(log.read_text(errors="replace"))
    return " ".join(match.group(1).split())[:300] if match else last_error(log)


def _parse_answer(stored: dict[str, Any], request: Request) -> Answer:
    """An answer to this very request, for every sequence and prompt."""
    try:
        answer = Answer(**stored)
        fits = (
            _lengths(answer.choices) == [len(ids) - 1 for ids in request.sequences]
            and _lengths(answer.log_probabilities) == _lengths(answer.choices)
            and _lengths(answer.continuations) == [request.generate] * len(request.prompts)
            and (answer.encoded is None or len(answer.encoded) == len(request.texts))
            and all(
                type(token) is int
                for row in (*answer.choices, *answer.continuations, *(answer.encoded or []))
                for token in row
            )
        )
    except TypeError:
        fits = False
    if not fits:
        raise EngineError("an answer that does not fit the question")
    return answer


def _lengths(rows: Sequence[Sequence[Any]]) -> list[int]:
    return [len(row) for row in rows]
