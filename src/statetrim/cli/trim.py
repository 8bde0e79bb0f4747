"""statetrim trim"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..defaults import KEY_METHOD, RECALL_SHARE, VALUE_METHOD
from . import arguments, checks
from .app import app
from .arguments import (
    DEFAULT_TEXT,
    Device,
    DeviceMap,
    Dtype,
    FamilyFile,
    Json,
    Keep,
    KeepHeads,
    KeepValues,
    MaxMemory,
    Model,
    Square,
    Widths,
)

if TYPE_CHECKING:
    from ..pipelines.options import TrimOptions

Output = Annotated[Path, typer.Option("-o", "--output", help="Output directory.")]
State = Annotated[
    float | None,
    typer.Option(
        help="Fraction of the state's bytes to keep, such as 0.5; compares the shapes that fit.",
        callback=checks.fraction,
    ),
]
StateMibPerSequence = Annotated[
    float | None,
    typer.Option(
        help="The largest state allowed per sequence, in MiB, instead of a number of channels."
    ),
]
Sequences = Annotated[
    int | None,
    typer.Option(
        help="Number of sequences whose states must fit in "
        "--memory-gib, instead of a number of channels."
    ),
]
MemoryGib = Annotated[
    float | None,
    typer.Option(help="Memory for the states of --sequences, in GiB, without the weights."),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="Allow only shapes that this engine serves: vllm, vllm-cpu, sglang, "
        "transformers, mlx or llamacpp.",
        callback=checks.engine,
    ),
]
Sweep = Annotated[
    str | None,
    typer.Option(help="Measure several shapes, such as 96,64,48x48, plot them and recommend one."),
]
Text = Annotated[
    str,
    typer.Option(
        help="Text to calibrate and evaluate on: a file, folder or hub dataset.",
        callback=checks.text_source,
    ),
]
Tokens = Annotated[
    str, typer.Option(help="Number of tokens to calibrate on.", callback=checks.token_counts)
]
Recall = Annotated[
    float,
    typer.Option(
        help="Fraction of these tokens that are generated recall sequences.",
        callback=checks.fraction,
    ),
]
Random = Annotated[
    float,
    typer.Option(
        help="Fraction of these tokens that are drawn at random.", callback=checks.fraction
    ),
]
Method = Annotated[
    str, typer.Option(help="Selection method for key channels.", callback=checks.method)
]
ValueMethod = Annotated[
    str, typer.Option(help="Selection method for value channels.", callback=checks.method)
]
Refit = Annotated[
    bool | None,
    typer.Option(help="Refit the output projections; by default only if values or heads are cut."),
]
Recover = Annotated[
    str,
    typer.Option(
        help="Tokens to train on after the cut, such as 64m; 0 for no training.",
        callback=checks.token_counts,
    ),
]
Tasks = Annotated[
    str, typer.Option(help="Tasks to measure, separated by commas.", callback=checks.tasks)
]
Data = Annotated[Path | None, typer.Option(help="Directory with the data files of other tasks.")]
Limit = Annotated[int, typer.Option(help="Samples per task.", callback=checks.at_least_one)]
BatchSize = Annotated[
    int, typer.Option(help="Sequences per forward pass.", callback=checks.at_least_one)
]
NoControl = Annotated[
    bool, typer.Option("--no-control", help="Do not measure a random cut for comparison.")
]
NoBenchmark = Annotated[bool, typer.Option("--no-benchmark", help="Skip the benchmark.")]
Layerwise = Annotated[
    bool,
    typer.Option(
        "--layerwise", help="Stream weights from disk; by default only if memory is short."
    ),
]
StateDtype = Annotated[
    str | None,
    typer.Option(
        help="Measure the cut with states stored in bfloat16, float16, float8_e4m3fn or "
        "int8, as an engine would store them; the original keeps float32."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and its estimated cost, and stop.")
]


Length = Annotated[int, typer.Option(help="Tokens per sequence.", callback=checks.at_least_one)]
Seed = Annotated[int, typer.Option(help="Random seed.", callback=checks.seed)]


def _load_recipe_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Set the defaults of all options to the recipe's values, and return `path`; options on the
    command line take precedence. Raises StatetrimError if the recipe is not valid."""
    if path is not None and not context.resilient_parsing:
        from ..pipelines.recipe import read_recipe

        values = read_recipe(path)
        for name in ("control", "benchmark"):
            if name in values:
                values[f"no_{name}"] = not values.pop(name)
        if "for" in values:
            values["for_"] = values["for"]
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = ",".join(map(str, value))
        context.default_map = values
    return path


Recipe = Annotated[
    Path | None,
    typer.Option(
        help="YAML file with the model and options; options given here take precedence.",
        callback=_load_recipe_defaults,
        is_eager=True,
    ),
]


@app.command()
def trim(
    context: typer.Context,
    model: Model,
    output: Output,
    state: State = None,
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    widths: Widths = None,
    keep_heads: KeepHeads = None,
    state_mib_per_sequence: StateMibPerSequence = None,
    sequences: Sequences = None,
    memory_gib: MemoryGib = None,
    for_: For = None,
    sweep: Sweep = None,
    text: Text = DEFAULT_TEXT,
    tokens: Tokens = "256k",
    recall: Recall = RECALL_SHARE,
    random: Random = 0.0,
    method: Method = KEY_METHOD,
    value_method: ValueMethod = VALUE_METHOD,
    refit: Refit = None,
    recover: Recover = "0",
    tasks: Tasks = "text,mqar",
    data: Data = None,
    limit: Limit = 32,
    length: Length = 512,
    batch_size: BatchSize = 8,
    no_control: NoControl = False,
    no_benchmark: NoBenchmark = False,
    layerwise: Layerwise = False,
    device: Device = None,
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    dtype: Dtype = None,
    state_dtype: StateDtype = None,
    seed: Seed = 0,
    recipe: Recipe = None,
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
        widths=widths,
        keep_heads=keep_heads,
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
        tasks=arguments.parse_names(tasks),
        data=data,
        limit=limit,
        length=length,
        batch_size=batch_size,
        control=not no_control,
        benchmark=not no_benchmark,
        seed=seed,
        layerwise=layerwise or (context.default_map or {}).get("layerwise"),  # None: if needed
        device=device,
        device_map=device_map,
        max_memory=max_memory,
        dtype=dtype,
        state_dtype=state_dtype,
    )
    _trim_or_sweep(model, family, sweep, options, output, dry_run=dry_run, as_json=as_json)


def _trim_or_sweep(
    model: str,
    family: Path | None,
    sweep: str | None,
    options: "TrimOptions",
    output: Path,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Open the model, for a dry run without downloading weights, and run `trim`, or a sweep if
    `sweep` has shapes."""
    opened = arguments.open_model(model, family, weights="headers" if dry_run else True)
    if sweep is None:
        _trim(opened, options, output, dry_run=dry_run, as_json=as_json)
    else:
        _sweep(opened, sweep, options, output, dry_run=dry_run, as_json=as_json)


def _trim(
    model: Any, options: "TrimOptions", output: Path, *, dry_run: bool, as_json: bool
) -> None:
    """Check the job, print its estimated steps, run it and print the result.

    A dry run ends after the steps; else they are not printed with --json or for a finished result.
    """
    from ..console import trim as console
    from ..pipelines import trim as trimming
    from ..pipelines.estimate import Machine
    from ..pipelines.job import Job
    from ..pipelines.steps import steps

    job = Job.from_options(model, options)
    job.check()
    is_finished = trimming.is_finished(job, output)
    planned_steps = steps(job, Machine.measure(options.placement))
    if dry_run or not (as_json or is_finished):
        console.show_steps(job, planned_steps, str(output), dry_run=dry_run, as_json=as_json)
    if not dry_run:
        observer = console.TerminalObserver(planned_steps)
        cut = trimming.run(job, output, observer)
        console.show_trimmed(cut, job, observer, as_json=as_json)


def _sweep(
    model: Any,
    sweep: str,
    options: "TrimOptions",
    output: Path,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Check the job of each shape in `sweep`, separated by commas, print the estimated steps,
    measure the shapes and print the result.

    A dry run ends after the steps; else they are not printed with --json or for a finished result.
    """
    from ..console import sweep as console
    from ..console.trim import TerminalObserver
    from ..pipelines import sweep as sweeping
    from ..pipelines.estimate import Machine
    from ..pipelines.steps import sweep_steps

    shapes = [shape.strip() for shape in sweep.split(",")]
    jobs = sweeping.jobs_by_shape(model, shapes, options)
    for job in jobs.values():
        job.check()
    is_finished = sweeping.is_finished(model, shapes, options, output)
    planned_steps = sweep_steps(jobs, Machine.measure())
    if dry_run or not (as_json or is_finished):
        console.show_sweep_steps(jobs, planned_steps, str(output), dry_run=dry_run, as_json=as_json)
    if not dry_run:
        result = sweeping.run(model, jobs, options, output, TerminalObserver(planned_steps))
        console.show_sweep(result, str(output), as_json=as_json)
