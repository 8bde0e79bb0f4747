"""Untrusted files and wrong arguments: exit code 2, one sentence, nothing written, nothing run.

A case is a function that damages a valid checkpoint and plan in `root` and may return a command
line (otherwise it is `prune`), and a pattern that the message must match, so that no case passes
for another reason. The cases are in the test files of their subjects.
"""

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import raw
from helpers.cases import load_cases
from helpers.refusal import check_refusal, fingerprint, run
from helpers.tiny import Load

MAX_SECONDS = 10.0
MAX_BYTES = 3 * 2**28
"""More than what is imported takes: about a gigabyte in all."""
MIB = 2**20
BASE = "qwen3_5_text"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
QKV = "model.layers.0.linear_attn.in_proj_qkv.weight"
CONV = "model.layers.0.linear_attn.conv1d.weight"
EMBEDDING = "model.embed_tokens.weight"
ESCAPE = "\x1b[2J\x1b]0;owned\x07\n\u202e"
BAD_JSON = {
    "empty": b"", "garbage": b"\xff\xfe\x00garbage", "not utf-8": b'{"\xff": 1}',
    "open string": b'{"a', "comma": b'{"a": 1,}', "single quotes": b"{'a': 1}",
    "comment": b"{} // no", "NaN": b'{"a": NaN}', "Infinity": b'{"a": -Infinity}',
    "twice": b'{"a": {}, "a": {}}', "twice inside": b'{"a": {"dtype": "F32", "dtype": "F16"}}',
    "deep lists": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "fairly deep": b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
    "half a surrogate pair": b'{"\\ud800": 1}',
    "a number of 5000 digits": b'{"a": ' + b"9" * 5000 + b"}", "byte order mark": b"\xef\xbb\xbf{}",
}  # fmt: skip
NOT_OBJECTS = {"list": b"[]", "text": b'"a"', "number": b"1", "null": b"null", "true": b"true"}

SpoilCheckpoint = Callable[[Path], Any]
SoundCheckpoint = Load


@dataclass(frozen=True)
class Case:
    name: str
    spoil: SpoilCheckpoint
    message: str
    model_type: str = BASE
    slow: bool = False

    def as_parameter(self) -> Any:
        marks = [pytest.mark.slow] if self.slow else []
        return pytest.param(self, marks=marks, id=ascii(self.name)[:60])


@dataclass(frozen=True)
class Cases:
    """The cases of one test file; names are unique in the whole suite."""

    all: list[Case] = field(default_factory=list)

    def add(
        self,
        name: str,
        spoil: SpoilCheckpoint,
        message: str,
        model_type: str = BASE,
        slow: bool = False,
    ) -> None:
        assert (name, model_type) not in _USED_NAMES, f"{name}, {model_type} is there already"
        _USED_NAMES.add((name, model_type))
        self.all.append(Case(name, spoil, message, model_type, slow))

    def add_values(self, table: str, spoil: Callable[[Any, Any], SpoilCheckpoint]) -> None:
        """Rows of tests/data/cases: a place, values that are refused there, with which message, and
        of which model type. `spoil` puts a value into the place."""
        for place, values, message, *model_type in load_cases(table):
            for value in values:
                name = f"{table}, {place}: {value!r}"
                self.add(name, spoil(place, value), message, *model_type)

    def refused(self) -> Callable[..., None]:
        """A test that every case is refused in this process, within MAX_SECONDS of CPU time."""

        @pytest.mark.timeout(60)
        @pytest.mark.parametrize("case", [case.as_parameter() for case in self.all])
        def test(case: Case, sound: SoundCheckpoint, scratch: Path, little_memory: None) -> None:
            root = scratch / str(next(_NUMBERS))
            shutil.copytree(sound(case.model_type), root)
            arguments = case.spoil(root)
            before = fingerprint(root)
            started = time.process_time()  # wall time depends on other processes
            command = arguments if isinstance(arguments, list) else prune(root)
            check_refusal(*run(command), case.message)
            assert time.process_time() - started < MAX_SECONDS
            assert fingerprint(root) == before, "nothing was written"
            assert not (root / "executed").exists()
            shutil.rmtree(root)

        return test


_USED_NAMES: set[tuple[str, str]] = set()
_NUMBERS = itertools.count()


# --- commands, and ways to spoil what they read ---------------------------------------------------


def prune(root: Path) -> list[str]:
    return ["prune", str(root / "model"), str(root / "plan.json"), "-o", str(root / "out")]


def select(root: Path, to: str = "8x100%") -> list[str]:
    chosen = ["--to", to, "--method", "l1"]
    return ["select", str(root / "model"), *chosen, "-o", str(root / "new.json")]


def inspect(root: Path) -> list[str]:
    return ["inspect", str(root / "model")]


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    replaced = change(value)
    path.write_text(json.dumps(value if replaced is None else replaced))


def put(content: dict[str, Any], place: list[Any], value: Any) -> None:
    """Set the value at a place in a JSON object: names and indices, from the outside inwards."""
    inner: Any = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value


def edited_config(
    change: Callable[[dict[str, Any]], Any], command: Callable[[Path], list[str]] = inspect
) -> SpoilCheckpoint:
    def spoil(root: Path) -> list[str]:
        edit_json(root / "model" / "config.json", change)
        return command(root)

    return spoil


def replaced(name: str, make: Callable[[Path], Any]) -> SpoilCheckpoint:
    """The file `name` of the checkpoint is what `make` makes."""

    def spoil(root: Path) -> None:
        (root / "model" / name).unlink(missing_ok=True)
        make(root / "model" / name)

    return spoil


def sparse_file(path: Path) -> None:
    """A tebibyte."""
    path.touch()
    os.truncate(path, 2**40)


def first_name(header: dict[str, Any]) -> str:
    return next(name for name in header if name != "__metadata__")


def heavy_file(name: str, content: Callable[[], bytes]) -> SpoilCheckpoint:
    def spoil(root: Path) -> None:
        path = root / "model" / name if name != "plan.json" else root / name
        if name.endswith(".safetensors"):
            raw.write(path, content(), b"")
        else:
            path.write_bytes(content())

    return spoil


def filled(unit: str, size: int) -> Callable[[], bytes]:
    return lambda: b'{"a":[' + ",".join([unit] * (size // (len(unit) + 1))).encode() + b"]}"


def many_names(size: int, last: str) -> Callable[[], bytes]:
    """JSON with distinct names, then `last`, which is a repeated or unknown name."""
    return lambda: ("{" + "".join(f'"{n:x}":0,' for n in range(size // 11)) + last + "}").encode()


# --- fixtures; import them by name ----------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> SoundCheckpoint:
    """Returns a folder with a valid checkpoint and a plan for it, by model type."""
    directory = tmp_path_factory.mktemp("sound")

    def get(model_type: str) -> Path:
        root = directory / model_type
        if not root.exists():
            model = st.open(raw.build(root / "model", model_type))
            st.select(model, "l1", "8x100%").save(root / "plan.json")
        return root

    return get


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all cases: creating pytest's directories takes longer than a case."""
    return tmp_path_factory.mktemp("untrusted")


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Checks that a test allocates at most MAX_BYTES."""
    refs = Path("/proc/self/clear_refs")
    if not refs.exists():
        yield
        return
    refs.write_text("5")  # resets the high-water mark
    before = memory_bytes("VmRSS")
    yield
    assert memory_bytes("VmHWM") - before < MAX_BYTES


def memory_bytes(kind: str) -> int:
    """Of this process: VmRSS now, or VmHWM at its peak."""
    match = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match.group(1)) * 1024
