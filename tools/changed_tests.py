"""Print the tests that a change needs: those of the changed folders, and the GUARDS.

    pytest $(python tools/changed_tests.py)          since origin/main (`just check`)
    pytest $(python tools/changed_tests.py v1.0.0)   since another commit

Committed, staged, edited and new files count. `.ci/run` runs every test.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
GUARDS = tuple(
    f"tests/test_{name}.py"
    for name in ("boundaries", "changed", "docs", "interface", "layout", "options", "prose")
)
PLACES = {
    "README.md": "tests/test_readme.py",
    "docs/quickstart.md": "tests/test_readme.py",
    "docs": "tests/docs",
    "results": "tests/docs",
    "CHANGELOG.md": "",
    "CONTRIBUTING.md": "",
    "SECURITY.md": "",
    "examples/first-cut.ipynb": "tests/test_notebook.py",
    "examples": "tests/docs",
    "studies": "tests/studies",
    "benchmarks": "tests/studies/test_tables.py",
    "tools/kernels": "tests/kernels",
    "tools": "tests/studies/test_tables.py",
    "plugins/llamacpp": "tests/snapshots/test_llamacpp_codec.py",
    "plugins": "tests/serving/test_parts.py",
    "justfile": "tests/test_habits.py",
    "docker": "tests/test_habits.py",
    ".github": "tests/test_habits.py",
    ".ci": "tests/test_habits.py",
}
"""Path -> tests, for paths without a folder of the same name in tests/; the first match counts."""


def tests_of(path: str) -> str:
    """Path of the tests of a file; "" if the guards suffice, "tests" if any test may fail."""
    for prefix, tests in PLACES.items():
        if PurePosixPath(path).is_relative_to(prefix):
            return tests
    parts = PurePosixPath(path).parts
    if parts[:2] == ("src", "statetrim"):
        mirrored = f"tests/{parts[2]}" if len(parts) > 3 else f"tests/test_{parts[2]}"
        return mirrored if (ROOT / mirrored).exists() else "tests"
    if parts[0] == "tests" and parts[-1].startswith("test_"):
        return path if (ROOT / path).exists() else ""
    return "tests"  # helpers, test data, pyproject.toml, defaults.py: anything may depend on it


def select(changed: Iterable[str]) -> list[str]:
    """Test paths for the changed paths, none inside another, and the guards."""
    selected = {tests_of(path) for path in changed} - {""}
    if "tests" in selected:
        return ["tests"]
    inside = set()
    for outer in selected:
        inside |= {inner for inner in selected if inner.startswith(f"{outer}/")}
    return sorted((selected - inside) | set(GUARDS))


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed(since: str) -> list[str]:
    (base,) = git("merge-base", since, "HEAD")
    return git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")


if __name__ == "__main__":
    print(*select(changed(sys.argv[1] if len(sys.argv) > 1 else "origin/main")))
