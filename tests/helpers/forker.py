"""Commands and functions in forks of a process that has imported everything, torch above all.

`Forker` starts this file as a process and sends it commands; each runs in a fork that can be
measured and killed. `run_in_child` and `run_as_ranks` run functions in forks of the test process.
Importing starts no threads, and the process of `Forker` runs nothing itself: forking it is safe.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

import statetrim
import statetrim.commands.terminal
import statetrim.selection.select
import statetrim.surgery.prune
from statetrim.commands import main

Work = Callable[[], object]
_LIBRARIES = (
    "accelerate", "datasets", "peft", "torch._dynamo", "transformers", "transformers.trainer",
    "transformers.models.auto.modeling_auto", "matplotlib.pyplot",
    "matplotlib.backends.backend_agg", "pydantic.type_adapter", "rich.progress", "rich.table",
)  # fmt: skip


def modules() -> list[str]:
    """Names of everything that commands import."""
    names = [module.name for module in pkgutil.walk_packages(statetrim.__path__, "statetrim.")]
    names = [name for name in names if ".drivers." not in name and not name.endswith("__main__")]
    return [*_LIBRARIES, *names]


def import_all() -> None:
    for name in modules():
        importlib.import_module(name)


def exclude_from_collection() -> None:
    """Exclude all that exists from garbage collection, which in a fork would touch, and so copy,
    the memory it shares with its parent."""
    gc.collect()
    gc.freeze()


def fork(work: Work, *outputs: IO[bytes]) -> int:
    """Run `work` in a child, with standard output and error in the files `outputs`, if there are
    any; returns the child's process id. Its exit code is that of a SystemExit, or 1 for others."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 and later warn if there are threads; those of torch and tests sleep meanwhile.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code: int | str | None = 1
    try:
        for number, file in enumerate(outputs, start=1):
            os.dup2(file.fileno(), number)
        if outputs:
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        # At the first call after a fork, torch creates its threads again; it fails ("Invalid thread
        # pool") if two threads do so at once.
        torch.set_num_threads(torch.get_num_threads())
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def run_in_child(work: Work) -> int:
    """Run `work` in a child; returns its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1])


def run_as_ranks(work: Work, processes: int = 2) -> None:
    """Run `work` in `processes` children, with the environment variables that torchrun sets. If one
    fails, the others are killed, because they would wait for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
    shared |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}

    def run_rank(rank: int) -> None:
        variables = shared | {"RANK": rank, "LOCAL_RANK": rank}
        os.environ.update({name: str(value) for name, value in variables.items()})
        work()

    running = {fork(partial(run_rank, rank)) for rank in range(processes)}
    codes = []
    while running:
        time.sleep(0.01)
        for pid in [pid for pid in running if has_ended(pid)]:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            running.remove(pid)
        if any(codes):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
    assert codes == [0] * processes


def has_ended(pid: int) -> bool:
    """Whether the child has ended; leaves its exit status for a later wait."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Forker:
    """A process that imports `modules` and then runs each command in a fork."""

    def __init__(
        self,
        *modules: str,
        python: str | Path = sys.executable,
        environment: dict[str, str] | None = None,
    ) -> None:
        command = [python, "-P", str(Path(__file__)), *modules]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, text=True
        )

    def run(
        self,
        arguments: list[str],
        *,
        folder: Path | None = None,
        script: bool = False,
        kill_when: Path | None = None,
    ) -> dict[str, Any]:
        """Run statetrim, or the Python script that is the first argument, in `folder`. It is killed
        as soon as the path `kill_when` exists. Returns its exit code (or minus the signal), `out`,
        `err`, `cpu_seconds` and `peak`, its most memory in bytes."""
        assert self.process.stdin and self.process.stdout
        job = {
            "arguments": arguments, "folder": folder, "script": script, "kill_when": kill_when,
        }  # fmt: skip
        print(json.dumps(job, default=str), file=self.process.stdin, flush=True)
        reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        return reply

    def close(self) -> None:
        self.process.communicate()


def _run_job(job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = fork(partial(_run_command, job), out, err)
        if job["kill_when"] is not None:
            while not Path(job["kill_when"]).exists() and not has_ended(pid):
                time.sleep(0.0005)
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        out.seek(0)
        err.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak": usage.ru_maxrss * 1024,
            "out": out.read().decode(),
            "err": err.read().decode(),
        }


def _run_command(job: dict[str, Any]) -> None:
    if job["folder"] is not None:
        os.chdir(job["folder"])
    if job["script"]:
        sys.argv = job["arguments"]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        sys.argv = ["statetrim", *job["arguments"]]
        main()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    exclude_from_collection()
    for line in sys.stdin:
        print(json.dumps(_run_job(json.loads(line))), flush=True)
