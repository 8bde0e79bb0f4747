"""The text of a bar, and that it fits on one line at any width."""

import io
import re

import pytest
from rich.console import Console

from statetrim.progress import Progress
from statetrim.progress.bar import RunProgress, Speed, amount_text, terminal_bar

LONG = Progress(12_288, 1_048_576, "tokens", "calibrating for the refit of a long name")
STEP = Progress(1, 10, "steps", "recovering", tokens=4096, loss=float("nan"))


@pytest.mark.parametrize("progress", [LONG, STEP, Progress(0, 0, "samples", "m: text")])
def test_nothing_that_is_not_a_number_is_shown(progress: Progress) -> None:
    text = amount_text(progress, Speed()(progress))
    assert not re.search(r"nan|\?|inf", text)
    assert " 0 tokens/s" not in text, "an unknown speed is not shown"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_line_fits_and_the_figures_are_whole(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    for progress in (LONG, STEP):
        with terminal_bar(
            "", console, lambda _: RunProgress(0.3, "step 10 of 11", 4000.0)
        ) as report:
            report(progress)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert lines and all(len(line) <= width for line in lines)
    if width < 80:
        return
    assert any(line.startswith("calibrating for the refit o") for line in lines)
    assert any("12,288/1,048,576 tokens" in line for line in lines)
    assert any(line.startswith("in all") and line.endswith("~67 min left") for line in lines)


def test_time_left_follows_what_was_done_since_the_first_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([0.0, 10.0, 10.0])
    monkeypatch.setattr("statetrim.progress.bar.time.monotonic", lambda: next(now))
    speed = Speed()
    speed(Progress(50, 100, "tokens"))
    assert speed.seconds_left(Progress(50, 100, "tokens")) is None
    assert speed(Progress(60, 100, "tokens")) == 1.0
    assert speed.seconds_left(Progress(60, 100, "tokens")) == 40.0
