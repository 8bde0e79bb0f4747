"""Checks of a refusal: exit code 2, one sentence, and no change of files."""

import hashlib
import io
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from statetrim.commands import main


def run(arguments: list[str]) -> tuple[int | None, str, str]:
    """Run the command line in this process; returns exit code (None: success), standard error and
    standard output."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    before = sys.argv
    sys.argv = ["statetrim", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code or None
    finally:
        sys.argv = before
    return code, err.getvalue(), out.getvalue()


def run_successfully(arguments: list[str]) -> None:
    code, err, _ = run(arguments)
    assert code is None, err


def fingerprint(root: Path) -> dict[str, Any]:
    """Mode, modification time, content hash (size if large) and link target of every path."""
    states: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        state = path.lstat()
        small = path.is_file() and not path.is_symlink() and state.st_size < 2**24
        content = hashlib.sha256(path.read_bytes()).hexdigest() if small else state.st_size
        link = os.readlink(path) if path.is_symlink() else ""
        states[str(path.relative_to(root))] = (state.st_mode, state.st_mtime_ns, content, link)
    return states


def assert_refused(arguments: list[str], expected_text: str, root: Path | None = None) -> None:
    """The command is refused with a message that matches `expected_text`; nothing below `root`
    changes."""
    before = fingerprint(root) if root else None
    check_refusal(*run(arguments), expected_text)
    assert before is None or (root and fingerprint(root) == before)


def check_refusal(code: int | None, err: str, out: str, expected_text: str) -> None:
    assert code == 2, err
    assert re.fullmatch(r"statetrim: [^\n]+\n", err), err
    assert err[:-1].isprintable(), repr(err)
    assert len(err) < 2000
    assert re.search(expected_text, err), err
    assert not out
