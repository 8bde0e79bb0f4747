"""A bar fits on its line at any width, shows numbers only, and is gone when the run ends."""

import os
import pty
import re
import sys
import termios
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from statetrim.progress import Progress, progress_reporter

LONG = Progress(12_288, 1_048_576, "tokens", "calibrating for the refit of a long name")
STEP = Progress(1, 10, "steps", "recovering", loss=float("nan"))
NAMED = Progress(0, 0, "samples", "\x1b[2Jmodel\n<b>: text")


def shown(monkeypatch: pytest.MonkeyPatch, width: int, *reports: Progress | float) -> list[str]:
    """What a terminal gets, one after the other, for reports, and for seconds between them."""
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, width))
    with os.fdopen(writer, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with progress_reporter(True, "calibrating") as show:
            for report in reports:
                if isinstance(report, Progress):
                    show(report)
                else:
                    time.sleep(report)
    received = b""
    with suppress(OSError):  # raised at the end, because the terminal is closed
        while more := os.read(reader, 2**12):
            received += more
    os.close(reader)
    return received.decode().split("\r")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_line_fits_and_holds_only_numbers(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(monkeypatch, width, LONG, STEP, NAMED)
    assert all(len(line) <= width and line.isprintable() for line in lines)
    assert not any(re.search(r"\bnan\b|\binf\b", line) for line in lines)
    assert lines[-1] == "" and not lines[-2].strip(), "the last one is erased"
    if width < 80:
        return
    assert any(re.match(r"calibrating for the refit o….*12.3k/1.05M \[", line) for line in lines)
    assert any("no finite loss" in line for line in lines)


def test_other_processes_of_a_launch_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert shown(monkeypatch, 80, STEP) == [""]


@pytest.mark.parametrize("shell", [SimpleNamespace(kernel=None), None])
def test_a_notebook_shows_a_bar_and_a_log_none(
    shell: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook's shell has a kernel; where a library merely imports IPython there is no shell."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with progress_reporter(True, "calibrating") as show:
        show(STEP)
    assert ("recovering: " in capsys.readouterr().err) == (shell is not None)


def test_time_left_follows_what_was_done_since_the_first_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = shown(monkeypatch, 80, Progress(50, 100, "steps"), 0.2, Progress(51, 100, "steps"))
    rates = [float(rate) for rate in re.findall(r"([\d.]+) steps/s", " ".join(lines))]
    assert rates and max(rates) < 6, "one step in 0.2 s, not 51"
