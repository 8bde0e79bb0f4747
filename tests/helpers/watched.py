"""`watched()` records every file that Python opens and every use of the network."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Watched:
    """Files opened by Python code, and network events."""

    files: set[Path] = field(default_factory=set)
    network: list[str] = field(default_factory=list)


_NETWORK = ("socket.__new__", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname")
_active: list[Watched] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _active:
        return
    if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        _active[-1].files.add(Path(os.fsdecode(args[0])))
    elif event in _NETWORK:
        _active[-1].network.append(f"{event} {args!r}"[:200])


sys.addaudithook(_hook)  # cannot be removed, so it does nothing outside of `watched`


@contextmanager
def watched() -> Iterator[Watched]:
    record = Watched()
    _active.append(record)
    try:
        yield record
    finally:
        _active.pop()
