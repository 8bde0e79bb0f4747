"""Check that the tree is ready for a release, and try what was built.

python tools/check_release.py v1.0.0rc1          version, citation and changelog agree
python tools/check_release.py v1.0.0rc1 dist/*   and the wheel holds the package, nothing else
python tools/check_release.py v1.0.0rc1 dist/* --in A/bin/python B/bin/python
                                                 and README and quickstart run from both packages

`just release TAG DIST A/bin/python B/bin/python` builds them first. A and B are virtual
environments with torch and without statetrim: make one for each version of Python. The wheel is
tried in all of them, the source distribution in the first.
"""

import argparse
import os
import re
import subprocess
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
    ".txt",
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


def installed_faults(package: Path, python: Path) -> Iterator[str]:
    """Install a package, and run the commands of the README and the quickstart from it."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python]
    subprocess.run([*pip, "uninstall", "--yes", "statetrim"], check=True, env=settings)
    subprocess.run([*pip, "install", f"{package}[recover,report]"], check=True, env=settings)
    tests = [sys.executable, "-m", "pytest", "-q", "tests/test_readme.py"]
    done = subprocess.run(tests, cwd=ROOT, env=os.environ | {"STATETRIM_PYTHON": str(python)})
    if done.returncode:
        yield f"README or quickstart do not run from {package.name} in {python}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tag", help="such as v1.0.0rc1")
    parser.add_argument("packages", type=Path, nargs="*", help="a wheel, a source distribution")
    parser.add_argument("--in", type=Path, nargs="+", default=[], dest="pythons", metavar="PYTHON")
    options = parser.parse_args()
    faults = list(tree_faults(options.tag))
    for package in options.packages:
        is_wheel = package.suffix == ".whl"
        faults += wheel_faults(package) if is_wheel else []
        for python in options.pythons if is_wheel else options.pythons[:1]:
            faults += installed_faults(package.absolute(), python.absolute())
    for fault in faults:
        print(f"check_release: {fault}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
