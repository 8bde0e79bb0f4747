"""The error text of a child process that failed."""

from pathlib import Path

from statetrim.runtime.child_process import last_error


def test_the_last_error_is_told_from_its_name_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("starting\n(core pid=7) ERROR 12:00 [core.py:3] ValueError: " + "word " * 90)
    assert last_error(log).startswith("ValueError: word word")
    log.write_text("Killed\n")
    assert last_error(log) == "Killed"
