"""Check that the tree is ready for a release, and that a wheel holds the right files.

python tools/check_release.py v0.2.0             version, citation and changelog agree
python tools/check_release.py v0.2.0 dist/*.whl  and the wheel holds the package, nothing else
"""

import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
MOST_BYTES = 3 * 2**20  # of a wheel with the demo's model; more hints at test data or pictures
KINDS = {
    ".py",
    ".pyi",
    ".json",
    ".safetensors",
    ".yaml",
    ".html",
    ".css",
    ".svg",
    ".jinja",
    ".typed",
}


def tree_faults(tag: str, root: Path = ROOT) -> Iterator[str]:
    version = tag.removeprefix("v")
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    if project["version"] != version:
        yield f"pyproject.toml says {project['version']}, the tag {tag}"
    citation = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if citation is None or citation.group(1) != version:
        yield f"CITATION.cff does not say version: {version}"
    dated = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(dated, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD'"


def wheel_faults(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    if "statetrim/py.typed" not in names:
        yield "statetrim/py.typed is missing, so type checkers see no types"
    for name in names:
        first = PurePosixPath(name).parts[0]
        if first != "statetrim" and not first.endswith(".dist-info"):
            yield f"{name} is not part of the package"
        elif first == "statetrim" and PurePosixPath(name).suffix not in KINDS:
            yield f"{name} is of a kind that the package does not need"
    if path.stat().st_size > MOST_BYTES:
        yield f"the wheel has {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}"


def main(tag: str, wheels: list[str]) -> int:
    faults = [
        *tree_faults(tag),
        *(fault for wheel in wheels for fault in wheel_faults(Path(wheel))),
    ]
    for fault in faults:
        print(f"check_release: {fault}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
