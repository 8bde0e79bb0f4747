"""Interrupt `trim` before each of its stages, change one option, run it again, and compare with a
run from the start: the same files, byte for byte, or a refusal.

    python -m helpers.reruns             every stage x every option (`just rerun-every-stage`)
    python -m helpers.reruns recover     every stage x these options
"""

import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.faults import file_hashes
from statetrim.pipelines.options import TrimOptions
from statetrim.pipelines.stage import Observer
from statetrim.storage.output import Output

PUBLISHING = "publish"
"""The last interruption: everything is made, and not yet published."""
METHOD = """import torch

def select(evidence, keep):
    heads, channels = evidence.table_shape
    return torch.arange({first}, {first} + keep).repeat(heads, 1)
"""
SAMPLES: dict[str, list[Any]] = load_cases("trim-samples")
"""Other values of each option than `Reruns.options` has; a new option needs one."""
FIRST_RUNS: tuple[dict[str, Any], ...] = (
    {}, {"recover": 0}, {"to": "6x4,4x8"}, {"to": 0.5, "by_layer": True},
)  # fmt: skip
FILES = ("method.py", "model/tokenizer_config.json")
"""Files to edit, as if they were options."""
EVERYTHING = (*(item.name for item in fields(TrimOptions)), *FILES)
CHANGED_BY_TIMINGS = ("timings.json", "report")


class _Snapshots(Observer):
    """Copies `OUT.partial` before each stage: what a kill there leaves."""

    def __init__(self, partial: Path, folder: Path) -> None:
        self.partial, self.folder = partial, folder
        self.paths: dict[str, Path] = {}

    def on_start(self, stage: str) -> None:
        if self.partial.exists():
            self.paths[stage] = self.folder / str(len(self.paths))
            shutil.copytree(self.partial, self.paths[stage])


@dataclass
class Reruns:
    """Runs in `root`, which holds a model, texts and a method."""

    root: Path
    changes: dict[str, Any]  # of the first run's options

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def options(self) -> dict[str, Any]:
        sizes = {"tokens": 1024, "length": 64, "limit": 2, "batch_size": 2, "tasks": ("text",)}
        files = {"text": "text.jsonl", "method": "method.py"}
        return {"to": "6x4", "recover": 1024, "benchmark": False, **sizes, **files} | self.changes

    def interrupted(self) -> dict[str, Path]:
        """What is left of the first run, by the stage before which it was interrupted."""
        folder = Path(tempfile.mkdtemp(dir=self.root))
        snapshots = _Snapshots(self.root / "out.partial", folder)

        publish = Output.publish

        def interrupt(output: Output, result: Path | None = None) -> None:
            if output.out != Path("out"):  # that of a stage
                return publish(output, result)
            snapshots.on_start(PUBLISHING)
            shutil.rmtree(output.path)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Output, "publish", interrupt)
            self.trim({}, snapshots)
        return snapshots.paths

    def trim(self, changes: dict[str, Any], watch: Observer | None = None) -> dict[str, str]:
        """The files of a run with the first run's options and `changes`, which is then removed."""
        options = self.options | changes
        st.trim("model", out="out", watch=watch or Observer(), **options)
        files = {}
        for path, digest in file_hashes(self.out).items():
            is_timed = any(part in CHANGED_BY_TIMINGS for part in Path(path).parts)
            if not (options["benchmark"] and is_timed):
                files[path] = digest
        assert not Path("out.partial").exists()
        shutil.rmtree(self.out)
        return files

    def compare(self, option: str, value: Any, stages: dict[str, Path]) -> Iterator[str]:
        """For each interruption: "refused", "equal" or what differs, after a change."""
        kept = Path(option).read_bytes() if option in FILES else b""
        changes = {} if option in FILES else {option: value}
        if option in FILES:
            Path(option).write_text(value)
        fresh: dict[str, str] | None = None
        for path in stages.values():
            shutil.copytree(path, "out.partial")
            try:
                files = self.trim(changes)
                fresh = fresh or self.trim(changes)
                differing = {name for name, _ in files.items() ^ fresh.items()}
                if option == "device":  # a record says where the training ran
                    differing.discard("statetrim/recover.json")
                yield f"differs in {sorted(differing)[:4]}" if differing else "equal"
            except st.StatetrimError as error:
                yield "refused" if "another job" in str(error) else f"refused: {error}"
                shutil.rmtree("out.partial", ignore_errors=True)
        if option in FILES:
            Path(option).write_bytes(kept)


def values(option: str) -> Sequence[Any]:
    """Other values of an option, or other contents of a file."""
    if option == "method.py":
        return (METHOD.format(first=2),)
    if option in FILES:
        return (Path(option).read_text() + "\n",)
    return SAMPLES[option]


def prepare(root: Path) -> Path:
    """Create the model, the texts and the method in `root`."""
    tiny.build("delta_net", root / "model")
    for name in ("text.jsonl", "other.jsonl"):
        tiny.write_text(root / name, 2**13)
    (root / "method.py").write_text(METHOD.format(first=0))
    return root


def quick_benchmark(patch: pytest.MonkeyPatch) -> None:
    run: Callable[..., Any] = st.benchmark.run
    quick = lambda models, options: run(models, replace(options, batches=[1], lengths=[8]))  # noqa: E731
    patch.setattr(st.benchmark, "run", quick)


def table(names: tuple[str, ...]) -> Iterator[str]:
    """A line for each first run, option and value: the results of all stages, counted."""
    for changes in FIRST_RUNS:
        reruns = Reruns(Path.cwd(), changes)
        stages = reruns.interrupted()
        yield f"first run {changes or 'as listed'}, interrupted before: {', '.join(stages)}"
        for option in names:
            for value in values(option) if option not in changes or option == "recover" else ():
                shown = "edited" if option in FILES else repr(value)
                value = 1024 if changes.get(option) == value else value
                results = list(reruns.compare(option, value, stages))
                counted = [f"{r} {len([*g])}" for r, g in itertools.groupby(results)]
                yield f"  {option} = {shown}: {', '.join(counted)}"


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(prefix="statetrim-reruns-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(prepare(Path(folder)))
        quick_benchmark(patch)
        for line in table(tuple(sys.argv[1:]) or EVERYTHING):
            print(line, flush=True)
