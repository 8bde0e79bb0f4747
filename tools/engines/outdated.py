"""List rows of the engine matrix that are older than the newest release on the registry.

    python tools/engines/outdated.py

Asks pip for the newest version of each engine's package. Exit code 1 if a current row ends before
it: that engine should be checked again.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

from packaging.version import Version

from statetrim.serving.engines import engines
from statetrim.serving.matrix import Row, matrix


def newest_version(package: str) -> Version | None:
    """The newest version on pip's registry; None if there is none."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.match(rf"{re.escape(package)} \(([^)]+)\)", done.stdout)
    return Version(match.group(1)) if match else None


def covers(row: Row, version: Version) -> bool:
    """Whether the last version of a row is this one or newer, to the precision that it has."""
    last = re.split(r"-(?=0\.|\d+\.\d)", row.versions)[-1].replace("-", ".")
    release = Version(last).release
    return release == version.release[: len(release)] or Version(last) > version


def outdated(get_newest: Callable[[str], Version | None] = newest_version) -> list[str]:
    """A sentence per engine that has rows older than its newest release."""
    sentences = []
    packages = [(engine.name, package) for engine in engines() for package in engine.packages]
    for engine, package in packages:
        rows = [row for row in matrix().rows if row.engine == engine and row.current]
        version = get_newest(package)
        if version is None:
            sentences.append(f"{engine}: the registry has no {package}")
            continue
        behind = [row for row in rows if not covers(row, version)]
        if behind:
            named = ", ".join(sorted({row.versions for row in behind}))
            sentences.append(f"{engine}: {len(behind)} of {len(rows)} rows are of {named}, "
                         f"and {package} {version} is out")  # fmt: skip
    return sentences


def main() -> None:
    sentences = outdated()
    print("\n".join(sentences) or "every row is of the newest release")
    sys.exit(bool(sentences))


if __name__ == "__main__":
    main()
