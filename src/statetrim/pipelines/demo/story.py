"""The demo's commands: cut a model four ways, and measure all of them."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from ...artifacts.analysis import Analysis
from ...artifacts.scores import Scores
from ...judging.verdict import Verdict
from ...serving.deployment import ship_verdict
from ...storage.checkpoint import open_checkpoint
from ...storage.output import check_absent, file_digest, open_output
from ...version import __version__
from ..observer import Observer
from ..stage import Stage
from .material import write_model, write_text

ORIGINAL, HALF, RANDOM, QUARTER, TINY = "MODEL", "HALF", "RANDOM", "QUARTER", "TINY"
CUTS = (HALF, RANDOM, QUARTER, TINY)  # in the order of the result
SHAPES = {HALF: "32x64", QUARTER: "32x32", TINY: "16x16"}
CALIBRATION = "--text text.jsonl --tokens 32k"
RECOVERY = (
    "--text text.jsonl --skip 32k --tokens 32k --length 256 --batch-size 4 --recall 0.25 --whole "
    "--learning-rate 1e-3"
)
MEASURED_FROM = "192k"  # tokens of the text; the recovery that is proposed reads up to here
SAMPLES = 32


@dataclass(frozen=True)
class Scene:
    """What one line of the demo says, and the commands behind it, without `statetrim`."""

    title: str
    commands: Sequence[str]


@dataclass(frozen=True)
class ModelResult:
    """One row of the result; the original and a random cut have no verdict."""

    name: str
    shape: str
    state_share: float  # of the original's bytes
    perplexity: float
    recall: float
    verdict: Verdict | None


@dataclass(frozen=True)
class Result:
    """What the demo found."""

    models: Sequence[ModelResult]
    used_share: float  # of the rank of the original's states
    report: Path


def steps(seed: int = 0) -> Iterator[Scene]:
    """All commands of the demo in order; `seed` draws recall sequences and random channels."""
    yield Scene(
        "how much of its state does the model use?",
        [
            f"inspect {ORIGINAL} --to {SHAPES[HALF]}",
            f"analyze {ORIGINAL} --text text.jsonl --tokens 4k --length 512 -o analysis.json",
        ],
    )
    yield Scene(
        "which channels matter, on text and on recall?",
        [f"calibrate {ORIGINAL} {CALIBRATION} --seed {seed} -o statistics.safetensors"],
    )
    half = SHAPES[HALF]
    yield Scene(
        f"cut to half: {HALF}, and {RANDOM} beside it",
        [
            *_cut_commands(HALF, seed),
            f"select {ORIGINAL} --to {half} --method rand --seed {seed} -o {RANDOM}.json",
            f"prune {ORIGINAL} {RANDOM}.json -o {RANDOM}",
        ],
    )
    yield Scene(
        f"cut to {QUARTER}, and much deeper to {TINY}",
        [*_cut_commands(QUARTER, seed), *_cut_commands(TINY, seed)],
    )
    yield Scene(
        "measure all of them",
        [
            f"evaluate {' '.join(CUTS)} --baseline {ORIGINAL} --tasks text,mqar --text text.jsonl "
            f"--skip {MEASURED_FROM} --limit {SAMPLES} -o scores.json",
            f"report {HALF} scores.json analysis.json --baseline {ORIGINAL} -o report",
        ],
    )


def _cut_commands(name: str, seed: int) -> Iterator[str]:
    """Select, prune and, as `trim` does if values are cut, refit."""
    shape = SHAPES[name]
    cuts_values = not shape.endswith("x64")
    pruned = f"{name}-pruned" if cuts_values else name
    yield f"select {ORIGINAL} --to {shape} --statistics statistics.safetensors -o {name}.json"
    yield f"prune {ORIGINAL} {name}.json -o {pruned}"
    if cuts_values:
        yield (
            f"calibrate {pruned} --original {ORIGINAL} {CALIBRATION} --seed {seed} "
            f"-o {name}-fit.safetensors"
        )
        yield f"refit {pruned} --statistics {name}-fit.safetensors -o {name}"


def run(
    out: Path,
    run_command: Callable[[list[str]], None],
    on_step: Callable[[str], None],
    seed: int = 0,
) -> Result:
    """Run the demo into the directory `out`, and return what it found.

    `out` appears when everything is done; an interrupted demo resumes. `run_command` gets the
    arguments of a statetrim command, `on_step` a numbered line on what happens next. Commands run
    in the working directory `OUT.partial`. Raises StatetrimError if `out` exists.
    """
    check_absent(out)
    record = {"format": "statetrim demo", "statetrim": __version__, "seed": seed}
    with open_output(out, "demo.json", record) as output_dir:
        with chdir(output_dir.path):
            write_text(Path("text.jsonl"), seed)
            material = record | {"text": file_digest(Path("text.jsonl"))}
            last = Stage(Path(ORIGINAL), material, lambda _: write_model(Path(ORIGINAL)))
            last.ensure(Observer())
            all_steps = list(steps(seed))
            for number, step in enumerate(all_steps, start=1):
                on_step(f"{number}/{len(all_steps)} {step.title}")
                for line in step.commands:
                    words = shlex.split(line)
                    if "-o" not in words:
                        run_command(words)
                        continue
                    last = _command_stage(words, last, run_command)
                    last.ensure(Observer())
        output_dir.publish()
    analysis = Analysis.load(out / "analysis.json")
    return Result(
        models=_model_results(out),
        used_share=float(analysis.mean_utilization.nanmean()),
        report=out / "report" / "report.html",
    )


def _command_stage(
    words: list[str], before: Stage, run_command: Callable[[list[str]], None]
) -> Stage:
    """The output of a command, which may read those of all commands before it."""
    output = Path(words[words.index("-o") + 1])
    return Stage(output, {"command": words}, lambda _: run_command(words), [before])


def _model_results(out: Path) -> list[ModelResult]:
    scores = Scores.load(out / "scores.json")
    original, results = open_checkpoint(out / ORIGINAL), []
    for name in scores.models:
        model = open_checkpoint(out / name)
        is_cut = name not in (ORIGINAL, RANDOM)
        results.append(
            ModelResult(
                name=name,
                shape=model.geometry.shape.replace(" x ", "x"),
                state_share=model.geometry.state_numel / original.geometry.state_numel,
                perplexity=scores.find(name, "text", "perplexity").value,
                recall=scores.find(name, "mqar", "accuracy").value,
                verdict=ship_verdict(scores, name, model) if is_cut else None,
            )
        )
    return results
