"""Ctrl-C: one sentence that says what is kept and how to resume, exit code 130, no traceback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.refusal import run
from statetrim.progress import OnProgress, Progress

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about its slow paths

TRIM = "trim MODEL --to 6x100% --text TEXT --tokens 1k --limit 2 --batch-size 2 -o OUT"
COMMANDS = {
    "calibrate": "calibrate MODEL --text TEXT --tokens 1k --length 64 --batch-size 2 -o OUT",
    "select": "select MODEL --to 6x100% --method l1 -o OUT",
    "prune": "prune MODEL PLAN -o OUT",
    "refit": "refit SMALL --statistics SUMS -o OUT",
    "recover": "recover SMALL --teacher MODEL --text TEXT --tokens 1k --length 64 -o OUT",
    "evaluate": "evaluate SMALL --baseline MODEL --tasks text --text TEXT --limit 2 -o OUT",
    "analyze": "analyze MODEL --text TEXT --tokens 1k --length 256 -o OUT.json",
    "sensitivity": "analyze MODEL --sensitivity --text TEXT --tokens 1k -o OUT.json",
    "benchmark": "benchmark SMALL --baseline MODEL --lengths 8 --batch-sizes 1 -o OUT",
    "trim": TRIM,
    "comparison": TRIM.replace("6x100%", "8x100%,6x100%"),
    "demo": "demo -o OUT",
}
KEEP = {"prune", "refit", "recover", "sensitivity", "demo"}
"""Commands that write partial output from the start; the others have none when they are stopped
before anything is finished."""


@pytest.fixture(scope="module")
def places(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    root = tmp_path_factory.mktemp("interrupted")
    model = st.open(checkpoint("qwen3_5_text"))
    text = tiny.write_text(root / "text.jsonl", 2**16)
    plan = st.select(model, "l1", "6x100%")
    plan.save(root / "plan.json")
    small = st.prune(model, plan, root / "small")
    sums = root / "sums.safetensors"
    st.calibrate(small, text, original=model, tokens=512, length=64, out=sums, progress=False)
    names = {"MODEL": model.path, "TEXT": text, "PLAN": root / "plan.json", "SMALL": small.path}
    return {name: str(path) for name, path in (names | {"SUMS": sums}).items()}


def command_words(command: str, places: dict[str, str], out: Path) -> list[str]:
    replacements = places | {"OUT": str(out), "OUT.json": f"{out}.json"}
    return [replacements.get(word, word) for word in command.split()]


@contextmanager
def interrupting_progress(label: str = "") -> Iterator[OnProgress]:
    def report(progress: Progress) -> None:
        raise KeyboardInterrupt

    yield report


@pytest.mark.parametrize("name", COMMANDS)
def test_every_long_command_says_what_is_kept(
    name: str, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import statetrim.commands.progress
    import statetrim.commands.trimming.observer

    command = command_words(COMMANDS[name], places, tmp_path / "out")
    with monkeypatch.context() as patch:
        for module in (statetrim.commands.progress, statetrim.commands.trimming.observer):
            patch.setattr(module, "show_progress", interrupting_progress)
        # By the demo. Forks of a process that has had two threads hang, and later tests fork it.
        patch.setattr(torch, "set_num_threads", lambda count: None)
        code, err, _ = run(command)
    assert code == 130, err
    last = err.splitlines()[-1]
    out = Path(command[-1])
    partial = out.with_name(out.name + ".partial")
    again = "run the same command again to"
    kept = f"what is finished is kept in {partial}; {again} resume"
    nothing_kept = f"nothing was kept; {again} start over"
    assert last == f"statetrim: interrupted; {kept if name in KEEP else nothing_kept}", err
    assert partial.exists() == (name in KEEP) and not out.exists()
    assert "Traceback" not in err
