"""Runs functions in forked children of the test process, which can be killed and import nothing.

Tracebacks of a child are in the standard error that pytest captures.
"""

import multiprocessing
import os
import socket
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait

import torch

Work = Callable[[], object]
_fork = multiprocessing.get_context("fork")


def run_in_child(work: Work) -> int:
    """Run `work` in a child; returns its exit code, or minus the signal that ended it."""
    (code,) = _exit_codes([_fork.Process(target=_run_work, args=(work, {}))])
    return code


def run_as_ranks(work: Work, processes: int = 2) -> None:
    """Run `work` in `processes` children, with the environment variables that torchrun sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
    shared |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    codes = _exit_codes([_fork.Process(target=_run_work, args=(work, rank)) for rank in ranks])
    assert codes == [0] * processes


def _exit_codes(children: list[multiprocessing.context.ForkProcess]) -> list[int]:
    """Start the children and return their exit codes. If one fails, the others are killed, because
    they would wait for it."""
    with warnings.catch_warnings():
        # Python 3.12 and later warn if there are threads; those of torch and tests sleep meanwhile.
        warnings.simplefilter("ignore", DeprecationWarning)
        for child in children:
            child.start()
    while running := [child for child in children if child.exitcode is None]:
        if any(child.exitcode for child in children):
            running[0].kill()
        wait([child.sentinel for child in running])
    return [child.exitcode for child in children if child.exitcode is not None]


def _run_work(work: Work, variables: dict[str, object]) -> None:
    os.environ.update({name: str(value) for name, value in variables.items()})
    reset_torch_threads()
    work()


def reset_torch_threads() -> None:
    """Call this first in a child of a process that ran torch. At the first call after a fork, torch
    creates its threads again; it fails ("Invalid thread pool") if two threads do so at once."""
    torch.set_num_threads(torch.get_num_threads())
