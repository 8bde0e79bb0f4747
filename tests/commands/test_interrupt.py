"""`trim` in a pseudo-terminal: bars disappear, notes have their own lines. After Ctrl-C a command
says in one sentence what is kept and how to resume; exit code 130, no traceback."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.refusal import run
from helpers.tiny import Load
from statetrim.progress import OnProgress, Progress
from statetrim.storage.space import explain_disk_errors

COLUMNS = 80
BAR, NOTE = r"%\|", r"step \d|kept|runs in|interrupted|checked"
BROKEN = re.compile(rf"({NOTE}).*{BAR}|{BAR}.*({NOTE})|{BAR}.*{BAR}|\bnan\b|/\?")
"""A bar and a note on one line, NaN, or an unknown total."""
FLAGS = "--to 6x100% --tokens 2k --limit 2 --batch-size 2 --tasks text --no-control"


def shown_lines(sent: str) -> list[str]:
    """The lines that a terminal shows at the end, none of which was ever broken: a carriage return
    begins a line again, over what it shows. Codes but those of colours are not understood here."""
    lines = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", sent).split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
            assert not BROKEN.search(shown) and shown.isprintable(), shown
            assert "%|" not in part or len(part) <= COLUMNS, "a bar that wraps would stay"
        lines.append(shown.rstrip())
    return lines


def in_terminal(words: list[str], stop_at: str = "") -> tuple[int, str]:
    """Exit code and all output; Ctrl-C is typed once `stop_at` is in the output."""
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    # The first terminal that a new session opens becomes its own, and Ctrl-C is sent from there.
    shell = ["sh", "-c", 'exec "$@" < "$0" > "$0" 2>&1', os.ttyname(terminal), sys.executable, "-m"]
    process = subprocess.Popen(
        [*shell, "statetrim", *words],
        start_new_session=True,
        env=os.environ | {"TERM": "xterm-256color"},
        # Tests that were started in the background ignore SIGINT, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    sent = b""
    while True:
        if select.select([controller], [], [], 0.2)[0]:
            sent += os.read(controller, 2**16)
            if stop_at and stop_at.encode() in sent:
                os.write(controller, b"\x03")
                stop_at = ""
        elif process.poll() is not None:
            break
    os.close(controller)
    os.close(terminal)
    return process.wait(), sent.decode()


def test_an_interrupt_that_a_library_turns_into_another_error(tmp_path: Path) -> None:
    """torch's C code gives a TypeError for a KeyboardInterrupt that arrives within it."""
    before = signal.default_int_handler
    signal.signal(signal.SIGINT, before)  # a shell lets jobs in its background ignore it
    with (
        pytest.raises(KeyboardInterrupt, match="nothing was kept"),
        explain_disk_errors(tmp_path / "out.partial"),
    ):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("could not determine the shape of object") from None
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(TypeError), explain_disk_errors(tmp_path / "out.partial"):
        raise TypeError("without an interrupt")


def test_no_line_is_broken(checkpoint: Load, tmp_path: Path) -> None:
    text = tiny.write_text(tmp_path / "text.jsonl", 2**13)
    out = tmp_path / "out"
    words = ["trim", str(checkpoint("qwen3_5_text")), "--text", str(text), *FLAGS.split()]
    code, sent = in_terminal([*words, "-o", str(out)], stop_at="select by")
    assert code == 130, sent
    shown = " ".join(shown_lines(sent))
    assert "statetrim: interrupted; what is finished is kept in" in shown
    assert "run the same command again to resume" in shown
    assert not re.search("Traceback|KeyboardInterrupt|Aborted", sent)

    code, sent = in_terminal([*words, "-o", str(out)])
    assert code == 0, sent
    assert "%|" in sent, "there were bars"
    lines = shown_lines(sent)
    assert not [line for line in lines if "%|" in line], "and they are gone"
    assert "calibrate: already done" in lines
    assert "step 3 of 6: prune" in lines and "step 6 of 6: report" in lines
    assert (out / "config.json").exists()


pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about its slow paths

COMMANDS: dict[str, str] = load_cases("interrupted")
KEEP = {"prune", "refit", "recover", "sensitivity", "demo"}
"""Commands that write partial output from the start; the others have none when they are stopped
before anything is finished."""


@pytest.fixture(scope="module")
def places(checkpoint: Load, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
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

    named = places | {"OUT": str(tmp_path / "out"), "OUT.json": str(tmp_path / "out.json")}
    command = [named.get(word, word) for word in COMMANDS[name].split()]
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
