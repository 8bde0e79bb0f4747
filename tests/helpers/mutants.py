"""Damages valid artifacts at random (seeded) and runs the commands that read them.

    python -m helpers.mutants 5000 0              5000 mutants with seed 0 (`just mutants`)
    python -m helpers.mutants 5000 0 quantized    of the quantised checkpoints only

A command may read a mutant or refuse it: exit code 0, or 2 and one sentence; no traceback, no
terminal control characters, and at most ten seconds.
"""

import copy
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import statetrim as st
from helpers import tiny
from helpers.quantized import FORMATS, quantize_checkpoint
from helpers.refusal import run

MAX_SECONDS = 10.0
_INVALID_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1e308, -1e308, 0.5, "", "x", "0", "\x1b[2J",
    "\ud800", "../../etc/passwd", "\n---\n# x", "x" * 100_000, [], {}, [None], [[]], [{}],
    {"": None}, {"a": {"b": []}}, [1e308] * 5, "NaN", "null", "a/b", "1" * 5000,
)  # fmt: skip

STORED = Path(__file__).parents[1] / "data" / "formats-1"
REPORTED = (
    "analysis", "memory", "scores", "sensitivity", "snapshots", "timings", "verification",
)  # fmt: skip
"""Artifacts that `report` reads."""
QUANTIZED = {"nvfp4": "nvfp4", "w4a16": "w4a16", "int8": "int8 by row", "modelopt": "modelopt fp8"}
"""Directory of a checkpoint, after "quantized-" -> its format; `quantized` is fine-grained FP8."""

Mutate = Callable[[random.Random, bytes], bytes]


def value_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path (keys and indices) of every nested value; of a list, only of the first three."""
    yield path
    if isinstance(value, dict):
        for name in value:
            yield from value_paths(value[name], (*path, name))
    elif isinstance(value, list):
        for number in range(min(3, len(value))):
            yield from value_paths(value[number], (*path, number))


def mutate_json(draw: random.Random, text: bytes) -> bytes:
    """One or two values replaced, removed, doubled or renamed."""
    value = json.loads(text)
    for _ in range(draw.choice((1, 1, 1, 2))):
        path = draw.choice(list(value_paths(value)))
        if not path:
            return json.dumps(draw.choice(_INVALID_VALUES)).encode()
        parent = value
        for step in path[:-1]:
            parent = parent[step]
        kind = draw.randrange(6)
        if kind == 0:
            del parent[path[-1]]
        elif kind == 1 and isinstance(parent, dict):
            name = draw.choice(("", "x", "kept", "format", "1e9", "\x1b[31m"))
            parent[name] = parent.pop(path[-1])
        elif kind == 2 and isinstance(parent, list):
            parent.append(parent[0])
        else:
            # A shared value would be changed later.
            parent[path[-1]] = copy.deepcopy(draw.choice(_INVALID_VALUES))
    written = json.dumps(value)
    if draw.random() < 0.05:  # longer than the integers that Python parses
        written = written.replace("1", "9" * 5000, 1)
    return written.encode()


def mutate_bytes(draw: random.Random, content: bytes) -> bytes:
    """Truncated, with a repeated section, or with some bytes replaced."""
    kind = draw.randrange(4)
    if kind == 0 or not content:
        return content[: draw.randrange(len(content) + 1)]
    if kind == 1:
        start = draw.randrange(len(content))
        return content[:start] + content[start : start + draw.randrange(1, 200)] + content[start:]
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 4, 50))):
        end = min(len(damaged), 4096 if kind == 2 else len(damaged))
        damaged[draw.randrange(end)] = draw.randrange(256)
    return bytes(damaged)


def mutate_header(draw: random.Random, content: bytes) -> bytes:
    """A safetensors file with a mutated JSON header."""
    length = int.from_bytes(content[:8], "little")
    header = mutate_json(draw, content[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def mutate_rows(draw: random.Random, text: bytes) -> bytes:
    lines = text.splitlines()
    number = draw.randrange(len(lines))
    lines[number] = mutate_json(draw, lines[number])
    return b"\n".join(lines)


def targets(root: Path) -> list[tuple[Path, Mutate, list[list[str]]]]:
    """Every input file, how it is damaged, and the commands that read it."""
    out = ["-o", str(root / "out")]
    model, small = str(root / "model"), str(root / "small")

    def reported(name: str) -> list[str]:
        return ["report", small, str(root / name), *out]

    inspected = [["inspect", model], ["select", model, "--method", "l1", "--to", "8x100%", *out]]
    pruned = [["prune", model, str(root / "plan.json"), *out]]
    sums, pairs = (root / f"{name}.safetensors" for name in ("statistics", "refit-statistics"))
    chosen = [["select", model, "--to", "8x100%", "--statistics", str(sums), *out]]
    refitted = [["refit", small, "--statistics", str(pairs), *out]]
    all_targets: list[tuple[Path, Mutate, list[list[str]]]] = [
        (root / "model" / "config.json", mutate_json, inspected),
        (root / "model" / "model.safetensors.index.json", mutate_json, inspected),
        (root / "plan.json", mutate_json, pruned),
        (sums, mutate_header, chosen),
        (root / "small" / "README.md", mutate_bytes, refitted),
        (pairs, mutate_header, refitted),
        (root / "analysis.safetensors", mutate_header, [reported("analysis.json")]),
        *_model_run_targets(root, out),
    ]
    for kind in REPORTED:
        all_targets.append((root / f"{kind}.json", mutate_json, [reported(f"{kind}.json")]))
    for path in sorted((root / "small" / "statetrim").glob("*.json")):
        all_targets.append((path, mutate_json, [["report", small, "--baseline", model, *out]]))
    all_targets += _quantized_targets(root, out)
    shard = sorted((root / "model").glob("*.safetensors"))[0]
    all_targets += [(shard, mutate_header, inspected)]
    all_targets += [
        (path, mutate_bytes, readers)
        for path, mutate, readers in all_targets
        if mutate is not mutate_bytes
    ]
    return all_targets


def _quantized_targets(
    root: Path, out: list[str]
) -> Iterator[tuple[Path, Mutate, list[list[str]]]]:
    """Checkpoints of several formats, and a quantised cut with the record of its errors."""
    sizes = ["--tokens", "256", "--length", "32", "--recall", "0", *out]
    for model in (root / "quantized", *(root / f"quantized-{name}" for name in QUANTIZED)):
        readers = [
            ["prune", str(model), str(root / "plan.json"), *out],
            ["inspect", str(model)],
            ["select", str(model), "--method", "l1", "--to", "8x100%", *out],
            ["calibrate", str(model), "--text", str(root / "few.jsonl"), *sizes],
        ]
        for name in ("config.json", "model.safetensors.index.json"):
            yield model / name, mutate_json, readers
        for path in sorted(model.glob("*.safetensors")):
            yield path, mutate_header, readers
    small = root / "quantized-small"
    statistics = str(root / "quantized-pairs")
    readers = [
        ["report", str(small), "--baseline", str(root / "quantized"), *out],
        ["refit", str(small), "--statistics", statistics, *out],
    ]
    for name in ("config.json", "statetrim/prune.json", "statetrim/plan.json"):
        yield small / name, mutate_json, readers
    for path in sorted(small.glob("*.safetensors")):
        yield path, mutate_header, readers


def _model_run_targets(
    root: Path, out: list[str]
) -> Iterator[tuple[Path, Mutate, list[list[str]]]]:
    """Targets that are read while a model runs: texts, tokenizers, recipes and task samples."""
    model, small = str(root / "model"), str(root / "small")
    sizes = ["--tokens", "512", "--length", "32", "--recall", "0", *out]
    for name in ("few.jsonl", "few.parquet"):
        read = ["calibrate", model, "--text", str(root / name), *sizes]
        yield root / name, mutate_rows if name == "few.jsonl" else mutate_bytes, [read]
        if name == "few.jsonl":
            for path in sorted((root / "model").glob("*config.json")):
                yield path, mutate_json, [read]
            yield root / "model" / "tokenizer.json", mutate_json, [read]
    recipe = root / "recipe.yaml"
    yield recipe, mutate_json, [["trim", "--dry-run", "--recipe", str(recipe), *out]]
    tasks = ["--data", str(root / "data"), "--limit", "2", *out]
    scored = ["evaluate", small, "--baseline", model, "--tasks"]
    yield root / "data" / "piqa" / "piqa_val.jsonl", mutate_rows, [[*scored, "piqa", *tasks]]


def prepare(root: Path) -> Path:
    """Create every kind of artifact in `root`: the stored ones, and quantised checkpoints."""
    shutil.copytree(STORED, root, dirs_exist_ok=True)
    _write_inputs(root)
    (root / "plan.json").unlink()  # a stored plan does not know quantised siblings
    st.select(root / "model", "l1,readout_l1", "8x4").save(root / "plan.json")
    for name, form in {"": "fine-grained fp8", **QUANTIZED}.items():
        quantized = root / (f"quantized-{name}" if name else "quantized")
        quantize_checkpoint(root / "model", quantized, FORMATS[form])
    small = st.prune(
        root / "quantized", root / "plan.json", root / "quantized-small", progress=False
    )
    st.calibrate(
        small, root / "few.jsonl", original=root / "quantized", tokens=256, length=32, batch_size=4,
        recall=0.0, out=root / "quantized-pairs", progress=False,
    )  # fmt: skip
    return root


def _write_inputs(root: Path) -> None:
    """Write the input files that no command writes."""
    from datasets import Dataset

    few = tiny.write_text(root / "few.jsonl", 600)
    rows = [json.loads(row) for row in few.read_text().splitlines()]
    Dataset.from_list(rows).to_parquet(root / "few.parquet")
    choice = {"goal": "w1 w2", "sol1": "w3", "sol2": "w4", "label": 1}
    (root / "data" / "piqa").mkdir(parents=True)
    (root / "data" / "piqa" / "piqa_val.jsonl").write_text(f"{json.dumps(choice)}\n" * 2)
    recipe = {
        "model": str(root / "model"), "to": "8x100%", "text": str(few), "tokens": 512,
        "tasks": ["mqar"], "limit": 2, "length": 32, "batch_size": 2, "control": False,
        "benchmark": False, "seed": 0,
    }  # fmt: skip
    (root / "recipe.yaml").write_text(json.dumps(recipe))  # JSON is YAML


def check(arguments: list[str]) -> str | None:
    """Run a command; returns the problem with how it ended, or None."""
    began = time.process_time()  # wall time depends on other processes
    try:
        code, err, out = run(arguments)
    except BaseException:
        return traceback.format_exc()[-1500:]
    if time.process_time() - began > MAX_SECONDS:
        return "took more than ten seconds"
    if code not in (None, 0, 2):
        return f"exit code {code}: {err[-300:]}"
    # A missing argument (a recipe without a model) is reported by typer itself.
    messages = [
        line for line in err.splitlines() if line.startswith(("statetrim: ", "Error: Missing "))
    ]
    if code == 2 and (len(messages) != 1 or len(messages[0]) > 2000):
        return f"not one sentence: {err[-300:]!r}"
    if any(not line.isprintable() for line in (err + out).splitlines()):
        return f"a terminal would obey: {err + out!r}"[:600]
    return None


def mutants(root: Path, count: int, seed: int, kind: str = "") -> Iterator[tuple[str, str | None]]:
    """Yields the name of each mutant, and its problem or None; only of files below directories
    whose name begins with `kind`."""
    all_targets = []
    for target in targets(root):
        if str(target[0].relative_to(root)).startswith(kind):
            all_targets.append(target)
    for number in range(count):
        draw = random.Random(seed * 1_000_003 + number)
        path, mutate, readers = all_targets[number % len(all_targets)]
        sound = path.read_bytes()
        try:
            path.write_bytes(mutate(draw, sound))
            problem = check(draw.choice(readers))
        finally:
            path.write_bytes(sound)
            for left in root.glob("out*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield f"{path.relative_to(root)}, number {number}", problem


def main(count: int, seed: int, kind: str = "") -> int:
    with tempfile.TemporaryDirectory(prefix="statetrim-mutants-") as folder:
        root, wrong, counts = prepare(Path(folder)), 0, Counter[str]()
        for name, problem in mutants(root, count, seed, kind):
            counts[name.partition(",")[0]] += 1
            if problem:
                wrong += 1
                print(f"{name}: {problem}", flush=True)
    print(f"{sum(counts.values())} mutants of {len(counts)} files, {wrong} failures")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
