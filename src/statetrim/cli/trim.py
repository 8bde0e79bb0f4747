"""statetrim trim"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import StatetrimError
from . import arguments
from .app import app
from .arguments import DEFAULT_TEXT, FamilyFile, Json, Keep, KeepValues, Model, Square

if TYPE_CHECKING:
    from ..pipelines.options import TrimOptions

Output = Annotated[Path, typer.Option("-o", "--output", help="Directory of the result.")]
State = Annotated[
    float | None,
    typer.Option(help="Share of the state's bytes to keep (0.5): compares the shapes that fit."),
]
StateMibPerSequence = Annotated[
    float | None, typer.Option(help="Instead: the most a sequence's state may take.")
]
Sequences = Annotated[
    int | None, typer.Option(help="Instead: sequences to hold at once, in --memory-gib.")
]
MemoryGib = Annotated[
    float | None, typer.Option(help="Memory for their states, beside the weights.")
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="Only shapes that this engine serves: vllm, sglang, transformers, mlx or llamacpp.",
    ),
]
Sweep = Annotated[
    str | None, typer.Option(help="Try several, such as 96,64,48,32 or 64x64, and draw them.")
]
Text = Annotated[
    str, typer.Option(help="Text to calibrate and evaluate on: a file, folder or hub dataset.")
]
Tokens = Annotated[str, typer.Option(help="How many tokens to calibrate on.")]
Recall = Annotated[
    float, typer.Option(help="The part of those tokens that are recall sequences made for it.")
]
Random = Annotated[float, typer.Option(help="The part of those tokens drawn at random.")]
Method = Annotated[str, typer.Option(help="How key channels are chosen.")]
ValueMethod = Annotated[str, typer.Option(help="How value channels are chosen.")]
Refit = Annotated[
    bool | None,
    typer.Option(help="Fit output projections anew; else only where values are cut."),
]
Recover = Annotated[
    str, typer.Option(help="Tokens to recover on after the cut, such as 64m; 0 for none.")
]
Tasks = Annotated[str, typer.Option(help="What is measured, with commas.")]
Data = Annotated[Path | None, typer.Option(help="Directory with the files of other tasks.")]
Limit = Annotated[int, typer.Option(help="Samples of each task.")]
BatchSize = Annotated[int, typer.Option(help="Sequences per forward pass.")]
NoControl = Annotated[
    bool, typer.Option("--no-control", help="Do not measure a random cut beside it.")
]
NoBenchmark = Annotated[bool, typer.Option("--no-benchmark", help="Do not time it.")]
Layerwise = Annotated[
    bool, typer.Option("--layerwise", help="Stream weights from disk; else where they must.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and what it will take, and stop.")
]


@app.command()
def trim(
    model: Model,
    output: Output,
    state: State = None,
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    state_mib_per_sequence: StateMibPerSequence = None,
    sequences: Sequences = None,
    memory_gib: MemoryGib = None,
    for_: For = None,
    sweep: Sweep = None,
    text: Text = DEFAULT_TEXT,
    tokens: Tokens = "256k",
    recall: Recall = 0.0,
    random: Random = 0.0,
    method: Method = "drrqr",
    value_method: ValueMethod = "readout_greedy",
    refit: Refit = None,
    recover: Recover = "0",
    tasks: Tasks = "text,mqar",
    data: Data = None,
    limit: Limit = 32,
    batch_size: BatchSize = 8,
    no_control: NoControl = False,
    no_benchmark: NoBenchmark = False,
    layerwise: Layerwise = False,
    dry_run: DryRun = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Cut a model, check it, measure what was lost, and report: everything in one command."""
    from ..pipelines.options import TrimOptions

    options = TrimOptions(
        state=state,
        keep=keep,
        keep_values=keep_values,
        square=square,
        state_mib_per_sequence=state_mib_per_sequence,
        sequences=sequences,
        memory_gib=memory_gib,
        for_=for_,
        text=text,
        tokens=tokens,
        recall=recall,
        random=random,
        method=method,
        value_method=value_method,
        refit=refit,
        recover=recover,
        tasks=arguments.names(tasks),
        data=data,
        limit=limit,
        batch_size=batch_size,
        control=not no_control,
        benchmark=not no_benchmark,
        layerwise=layerwise or None,
    )
    opened = arguments.open_model(model, family)
    if sweep is None:
        _trim(opened, options, output, dry_run=dry_run, as_json=as_json)
    elif dry_run:
        raise StatetrimError("--sweep has no dry run; leave out --dry-run")
    else:
        _sweep(opened, sweep.split(","), options, output, as_json=as_json)


def _trim(
    model: Any, options: "TrimOptions", output: Path, *, dry_run: bool, as_json: bool
) -> None:
    from ..console import trim as console
    from ..pipelines import trim as trimming
    from ..pipelines.estimate import Machine
    from ..pipelines.job import Job
    from ..pipelines.steps import steps

    job, watch = Job.of(model, options), console.TerminalWatch()
    job.check()
    done = trimming.finished(job, output)
    if dry_run or not (as_json or done):
        found = steps(job, Machine.here())
        console.show_steps(job, found, str(output), dry_run=dry_run, as_json=as_json)
    if not dry_run:
        small = trimming.run(job, output, watch)
        console.show_trimmed(small, watch, as_json=as_json)


def _sweep(
    model: Any, shapes: list[str], options: "TrimOptions", output: Path, *, as_json: bool
) -> None:
    from ..console.sweep import show_sweep
    from ..console.trim import TerminalWatch
    from ..pipelines.sweep import sweep

    found = sweep(model, shapes, options, out=output, watch=TerminalWatch())
    show_sweep(found, str(output), as_json=as_json)
