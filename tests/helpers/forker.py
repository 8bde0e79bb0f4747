"""Runs the command line in forked children, so that torch is imported once for many processes.

Reads a job as JSON per line, answers with JSON per line:
    {"arguments": [...], "script": whether the first is a Python script, run instead of statetrim,
     "folder": where to run, or null,
     "kill_after": seconds or null, "free": bytes that the disk reports as free, or null,
     "kill_when": a path that must appear first, or null,
     "kill_size": and how many bytes must be in that directory,
     "kill_said": a pattern that a line on standard error must match first, or null}
    {"code": exit code or minus the signal, "seconds": ..., "cpu_seconds": ..., "peak": bytes,
     "err": ..., "out": ...}
Importing torch starts no threads, and this process runs nothing of it: forking is safe.
"""

import contextlib
import importlib
import json
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch  # noqa: F401

import statetrim.console.terminal
import statetrim.selection.select
import statetrim.surgery.prune  # noqa: F401
from statetrim.cli import main


def run_child(job: dict[str, Any], files: list[Any]) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(file.fileno(), number)
    sys.argv = [*(() if job["script"] else ["statetrim"]), *job["arguments"]]
    free = job["free"]
    if free is not None:
        usage = shutil.disk_usage("/")._replace(free=free)
        shutil.disk_usage = lambda path: usage
    code = 1
    try:
        if job["folder"] is not None:
            os.chdir(job["folder"])
        if job["script"]:
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:  # as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            run_child(job, [out, err])
        if job["kill_when"] is not None:
            while written_bytes(Path(job["kill_when"])) < job["kill_size"] and not has_ended(pid):
                time.sleep(0.0005)
        if job["kill_was_reported"] is not None:
            while not matches_output(job["kill_was_reported"], err.fileno()) and not has_ended(pid):
                time.sleep(0.0005)
        if job["kill_after"] is not None:
            time.sleep(job["kill_after"])
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - started
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": seconds,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak": usage.ru_maxrss * 1024,
            "out": texts[0],
            "err": texts[1],
        }


def written_bytes(path: Path) -> int:
    """Total size of the files in a directory; 0 for a file, -1 if the path does not exist."""
    if not path.exists():
        return -1
    total = 0
    with contextlib.suppress(FileNotFoundError):  # a directory was removed meanwhile
        for file in path.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                total += file.stat().st_size if file.is_file() else 0
    return total


def matches_output(pattern: str, file: int) -> bool:
    """Whether the pattern matches in the file; does not move the offset shared with the child."""
    text = os.pread(file, 2**20, 0).decode(errors="replace")
    return re.search(pattern, text, re.MULTILINE) is not None


def has_ended(pid: int) -> bool:
    """Whether the child has ended; leaves its exit status for a later wait."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, options) is not None


class Forker:
    """The client: starts this file as a process and sends it jobs. `modules` are imported before
    the first fork."""

    def __init__(
        self,
        *modules: str,
        python: str | Path = sys.executable,
        environment: dict[str, str] | None = None,
    ) -> None:
        import subprocess

        self.process = subprocess.Popen(
            [python, "-P", str(Path(__file__)), *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        arguments: list[str],
        kill_after: float | None = None,
        free: int | None = None,
        kill_when: Path | None = None,
        kill_size: int = 0,
        kill_was_reported: str | None = None,
        folder: Path | None = None,
        script: bool = False,
    ) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        job = {
            "arguments": arguments,
            "script": script,
            "folder": None if folder is None else str(folder),
            "kill_after": kill_after,
            "free": free,
            "kill_when": None if kill_when is None else str(kill_when),
            "kill_size": kill_size,
            "kill_was_reported": kill_was_reported,
        }
        print(json.dumps(job), file=self.process.stdin, flush=True)
        reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        return reply

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        reply = run_job(json.loads(line))
        print(json.dumps(reply), flush=True)
