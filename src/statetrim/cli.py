"""The command line: parsing only. Each command calls the function of the same name."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import StatetrimError

DEFAULT_TEXT = "HuggingFaceFW/fineweb-edu"
app = typer.Typer(
    name="statetrim",
    help="Shrink the recurrent state of linear-attention models after training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[str, typer.Argument(help="Checkpoint directory, config.json, or cached hub id.")]
FamilyFile = Annotated[
    Path | None, typer.Option("--family", help="Your own Python file that defines FAMILY.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Keep = Annotated[
    str | None, typer.Option(help="Channels to keep per key head (64), or the fraction (0.5).")
]
KeepValues = Annotated[
    str | None, typer.Option(help="Channels to keep per value head, or the fraction.")
]
Square = Annotated[
    str | None, typer.Option(help="Keep as many of keys and of values: a square state.")
]


@app.callback()
def _options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show Python's traceback when something fails.")
    ] = False,
) -> None:
    _state["traceback"] = traceback


_state = {"traceback": False}


@app.command()
def trim(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of the result.")],
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    state_mib_per_sequence: Annotated[
        float | None, typer.Option(help="Instead: the most a sequence's state may take.")
    ] = None,
    sequences: Annotated[
        int | None, typer.Option(help="Instead: sequences to hold at once, in --memory-gib.")
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory for their states, beside the weights.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="A shape of at most --keep (or half) that vllm, sglang, transformers, mlx or "
            "llamacpp serves; it may cut values too.",
        ),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Try several, such as 96,64,48,32 or 64x64, and draw them.")
    ] = None,
    text: Annotated[
        str, typer.Option(help="Text to calibrate and evaluate on: a file, folder or hub dataset.")
    ] = DEFAULT_TEXT,
    tokens: Annotated[str, typer.Option(help="How many tokens to calibrate on.")] = "256k",
    method: Annotated[str, typer.Option(help="How key channels are chosen.")] = "drrqr",
    value_method: Annotated[
        str, typer.Option(help="How value channels are chosen.")
    ] = "readout_greedy",
    refit: Annotated[
        bool | None,
        typer.Option(help="Fit output projections anew; else only where values are cut."),
    ] = None,
    recover: Annotated[
        str, typer.Option(help="Tokens to recover on after the cut, such as 64m; 0 for none.")
    ] = "0",
    tasks: Annotated[str, typer.Option(help="What is measured, with commas.")] = "text,mqar",
    data: Annotated[
        Path | None, typer.Option(help="Directory with the files of other tasks.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Samples of each task.")] = 32,
    batch_size: Annotated[int, typer.Option(help="Sequences per forward pass.")] = 8,
    no_control: Annotated[
        bool, typer.Option("--no-control", help="Do not measure a random cut beside it.")
    ] = False,
    no_benchmark: Annotated[bool, typer.Option("--no-benchmark", help="Do not time it.")] = False,
    layerwise: Annotated[
        bool, typer.Option("--layerwise", help="Stream weights from disk; else where they must.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and what it will take, and stop.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Cut a model, check it, measure what was lost, and report: everything in one command."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported; one bar is enough
    from dataclasses import replace

    from . import sweeping, trim_console, trimming
    from .estimate import Machine
    from .job import Job, for_engine, steps

    base = Job(
        _open(model, family),
        None,
        text=text,
        tokens=_count(tokens),
        method=method,
        value_method=value_method,
        refit=refit,
        recover=_count(recover),
        tasks=tuple(name.strip() for name in tasks.split(",")),
        data=data,
        limit=limit,
        batch_size=batch_size,
        control=not no_control,
        benchmark=not no_benchmark,
        layerwise=layerwise or None,
    )
    if sweep is not None:
        others = (keep, keep_values, square, state_mib_per_sequence, sequences, memory_gib, engine)
        if dry_run or any(other is not None for other in others):
            raise StatetrimError(
                "--sweep names its shapes itself and has no dry run; leave out --dry-run, --keep, "
                "--keep-values, --square, --for and budgets"
            )
        found = sweeping.run(base, sweep.split(","), output, trim_console.Spoken())
        trim_console.show_sweep(found, str(output), as_json=as_json)
        return
    if engine and not any((keep, keep_values, square, state_mib_per_sequence, sequences)):
        keep = "0.5"
    wanted = _wanted(
        base.model, keep, keep_values, square, state_mib_per_sequence, sequences, memory_gib
    )
    job = replace(base, keep=wanted[0], keep_values=wanted[1])
    job = for_engine(job, engine) if engine else job
    job.check()
    done = trimming.finished(job, output)
    if dry_run or not (as_json or done):
        trim_console.show_steps(job, steps(job, Machine.here()), str(output), as_json=as_json)
    if not dry_run:
        watch = trim_console.Spoken()
        small = trimming.run(job, output, watch)
        trim_console.show_trimmed(small, watch, as_json=as_json)


@app.command()
def inspect(
    model: Model,
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Cache memory; tells how many sequences fit.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of each sequence, with --memory-gib (4096).")
    ] = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Show a model's recurrent state, what it would be after a cut, and who serves that."""
    from . import console, serving, serving_console

    opened = _open(model, family)
    wanted = _widths(opened, keep, keep_values, square)
    report = serving.inspect(opened, *wanted, memory_gib=memory_gib, context=context)
    if as_json:
        console.show_json(report.as_json())
    else:
        console.show_report(report)
        serving_console.show_deployment(report.deployment, cut=report.after is not None)


@app.command()
def calibrate(
    model: Model,
    text: Annotated[
        str,
        typer.Option(help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the sums are written.")],
    methods: Annotated[
        str | None,
        typer.Option("--for", help="The methods to collect for, such as drrqr,grad; else drrqr."),
    ] = None,
    original: Annotated[
        str | None, typer.Option(help="The model before the cut: collect what refit needs.")
    ] = None,
    tokens: Annotated[str, typer.Option(help="How many tokens to run, such as 256k.")] = "256k",
    length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 512,
    batch_size: Annotated[int, typer.Option(help="Sequences per forward pass.")] = 8,
    skip: Annotated[str, typer.Option(help="Tokens of the text to pass over first.")] = "0",
    layerwise: Annotated[
        bool,
        typer.Option("--layerwise", help="Stream weights from disk, for huge models."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after an interruption.")] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Run text through a model and sum what selection methods need."""
    from . import console
    from .calibration import calibrate as run
    from .ranks import Ranks

    if original and methods:
        raise StatetrimError("with --original the sums are those of a refit; leave out --for")
    opened = _open(model, family)
    with console.tokens_progress("calibrating") as progress:
        statistics = run(
            opened,
            text,
            original=_open(original, family) if original else None,
            tokens=_count(tokens),
            methods=[name.strip() for name in (methods or "drrqr").split(",")],
            length=length,
            batch_size=batch_size,
            skip=_count(skip),
            layerwise=layerwise,
            out=output,
            resume=resume,
            progress=progress,
        )
    if Ranks.of_this_process().rank == 0:
        console.show_statistics(statistics, opened, str(output), as_json=as_json)


@app.command()
def merge(
    parts: Annotated[list[Path], typer.Argument(help="Statistics of one model on different data.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the sums are written.")],
) -> None:
    """Add statistics that were made apart."""
    from .statistics import Statistics
    from .statistics import merge as run

    _refuse_existing(output)
    run([Statistics.load(part) for part in parts]).save(output)
    print(f"{len(parts)} statistics added, written to {output}")


@app.command()
def select(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the plan is written.")],
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    statistics: Annotated[
        Path | None, typer.Option(help="What calibrate wrote, for methods that need it.")
    ] = None,
    method: Annotated[str, typer.Option(help="Name of a method, or your own Python file.")] = "l1",
    seed: Annotated[int, typer.Option(help="Seed for methods that draw at random.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the method, such as score=q.")
    ] = None,
    value_method: Annotated[
        str, typer.Option(help="The same for value channels: readout_greedy, readout_energy, ...")
    ] = "readout_l1",
    value_option: Annotated[
        list[str] | None, typer.Option(help="An option of the value method.")
    ] = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Choose the channels that stay, and write them to a plan."""
    from . import console, selection
    from .statistics import Statistics

    _refuse_existing(output)
    opened = _open(model, family)
    keys, values = _widths(opened, keep, keep_values, square)
    plan = selection.select(
        opened,
        method,
        keys,
        keep_values=values,
        value_method=value_method,
        value_options=_parse_options(value_option or []),
        seed=seed,
        statistics=Statistics.load(statistics) if statistics else None,
        progress=console.layers_progress("selecting"),
        **_parse_options(option or []),
    )
    plan.save(output)
    if as_json:
        console.show_json(
            {
                "plan": str(output),
                "method": plan.method,
                "keep": plan.keep,
                "value_method": plan.value_method,
                "keep_values": plan.keep_values,
            }
        )
    else:
        console.show_plan(plan, opened.geometry, str(output))


@app.command()
def prune(
    model: Model,
    plan: Annotated[Path, typer.Argument(help="A plan made by select for this very model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of the result.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, write nothing.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Cut a checkpoint by a plan, shard by shard."""
    from . import console
    from .plan import Plan
    from .pruning import prepare
    from .pruning import prune as run

    opened, chosen = _open(model, family), Plan.load(plan)
    surgery = prepare(opened, chosen)
    if not dry_run:
        with console.bytes_progress("pruning", surgery.bytes_after) as progress:
            run(opened, chosen, output, progress=progress)
    if as_json:
        console.show_json(
            {
                "output": str(output),
                "dry_run": dry_run,
                "tensors_cut": len(surgery.cuts),
                "head_k_dim": [opened.geometry.head_k_dim, surgery.geometry.head_k_dim],
                "head_v_dim": [opened.geometry.head_v_dim, surgery.geometry.head_v_dim],
                "state_bytes": [opened.geometry.state_numel * 4, surgery.geometry.state_numel * 4],
                "weight_bytes": [surgery.bytes_before, surgery.bytes_after],
                "parameters": [opened.parameters, surgery.parameters_after],
            }
        )
    else:
        console.show_surgery(surgery, str(output), done=not dry_run)


@app.command()
def refit(
    model: Annotated[str, typer.Argument(help="A pruned checkpoint.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of the result.")],
    statistics: Annotated[
        Path | None, typer.Option(help="What calibrate --original wrote for this checkpoint.")
    ] = None,
    damping: Annotated[
        float, typer.Option(help="Ridge, relative to the mean square of the channels.")
    ] = 1e-8,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Fit the output projections of a pruned checkpoint to the original's layer outputs."""
    from . import console
    from .refitting import refit as run
    from .statistics import Statistics

    opened = _open(model, family)
    heard = Statistics.load(statistics) if statistics else None
    size = sum(shard.path.stat().st_size for shard in opened.shards)
    with console.bytes_progress("refitting", size) as progress:
        fitted = run(opened, heard, out=output, damping=damping, progress=progress)
    console.show_refit(fitted, str(output), as_json=as_json)


@app.command()
def evaluate(
    models: Annotated[list[str], typer.Argument(help="Checkpoints to compare with the baseline.")],
    baseline: Annotated[str, typer.Option(help="The original checkpoint.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the scores are written.")],
    tasks: Annotated[
        str, typer.Option(help="Tasks or suites (likelihood, recall, offline), with commas.")
    ] = "offline",
    data: Annotated[
        Path | None, typer.Option(help="Directory with the tasks' files; without it, the hub.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="A text of your own, for the task 'text'.")
    ] = None,
    skip: Annotated[str, typer.Option(help="Tokens of that text to pass over first.")] = "0",
    limit: Annotated[
        int | None, typer.Option(help="Only the first samples of each task, for a quick look.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences per forward pass.")] = 8,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help="Exit code 1 when this is so: 'recall drop > 2%' (or: > 2 points)."),
    ] = None,
    engine: Annotated[str, typer.Option(help="hf, or vllm in an environment that has it.")] = "hf",
    layerwise: Annotated[
        bool, typer.Option("--layerwise", help="Stream weights from disk, for huge models.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after an interruption.")] = False,
    as_json: Json = False,
) -> None:
    """Score models and their original on the same samples, and say what was lost."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported; one bar is enough
    from . import console, verdicts
    from .evaluation import evaluate as run

    for rule in fail_if or []:
        verdicts.check_rule(rule)
    with console.tasks_progress() as progress:
        scores = run(
            models,
            baseline=baseline,
            tasks=[name.strip() for name in tasks.split(",")],
            data=data,
            text=text,
            skip=_count(skip),
            limit=limit,
            batch_size=batch_size,
            engine=engine,  # type: ignore[arg-type]
            layerwise=layerwise,
            out=output,
            resume=resume,
            progress=progress,
        )
    console.show_scores(scores, str(output), as_json=as_json)
    for rule in fail_if or []:
        sentence = verdicts.broken(rule, scores)
        if sentence:
            print(f"statetrim: {sentence}", file=sys.stderr)
            sys.exit(1)


@app.command()
def analyze(
    model: Model,
    text: Annotated[
        str,
        typer.Option(help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the JSON is written.")],
    tokens: Annotated[str, typer.Option(help="How many tokens to run, such as 16k.")] = "16k",
    baseline: Annotated[
        str | None, typer.Option(help="The model before the cut, run on the same text.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw PNG and SVG pictures into this directory.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 2048,
    every: Annotated[
        str, typer.Option(help="Look at states every 'chunk' (64 tokens), 'token', or 2 to 32.")
    ] = "chunk",
    burn_in: Annotated[
        int, typer.Option(help="First tokens of a sequence left out of spectra and means.")
    ] = 128,
    batch_size: Annotated[int, typer.Option(help="Sequences per forward pass.")] = 1,
    skip: Annotated[str, typer.Option(help="Tokens of the text to pass over first.")] = "0",
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Show how full the state of every layer and head is, on a text."""
    from . import console
    from .analysis import analyze as run

    if output.suffix != ".json":
        raise StatetrimError(f"{output} must end in .json; arrays go beside it as .safetensors")
    for path in (output, output.with_suffix(".safetensors")):
        _refuse_existing(path)
    if figures:
        from . import figures as drawing  # before the work: matplotlib may be absent
    opened = _open(model, family)
    with console.tokens_progress("analysing") as progress:
        found = run(
            opened,
            text,
            tokens=_count(tokens),
            length=length,
            every=int(every) if every.isdecimal() and len(every) < 4 else every,  # type: ignore[arg-type]
            burn_in=burn_in,
            batch_size=batch_size,
            skip=_count(skip),
            baseline=_open(baseline, family) if baseline else None,
            progress=progress,
        )
    found.save(output)
    drawn = []
    if figures:
        before = {"before": found.baseline} if found.baseline else {}
        label = "after" if found.baseline else opened.path.name
        drawn = drawing.save_all({**before, label: found}, figures)
    if as_json:
        about = {"analysis": str(output), "figures": list(map(str, drawn)), **found.summary()}
        if found.baseline:
            about["baseline"] = found.baseline.summary()
        console.show_json(about)
    else:
        console.show_analysis(found, str(output), [str(path) for path in drawn])


@app.command()
def recover(
    model: Annotated[str, typer.Argument(help="The pruned checkpoint.")],
    text: Annotated[
        str,
        typer.Option(help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of the result.")],
    teacher: Annotated[
        str | None, typer.Option(help="The original checkpoint; without it, cross-entropy alone.")
    ] = None,
    tokens: Annotated[str, typer.Option(help="How many tokens to train on.")] = "64m",
    length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 2048,
    skip: Annotated[str, typer.Option(help="Tokens of the text to pass over first.")] = "0",
    batch_size: Annotated[int, typer.Option(help="Sequences per step, in all processes.")] = 16,
    micro_batch: Annotated[
        int | None, typer.Option(help="Sequences run at a time in a process; less memory.")
    ] = None,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA adapters.")] = 16,
    alpha: Annotated[int, typer.Option(help="Their scale times their rank.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="The highest; it falls to a tenth.")] = 1e-4,
    temperature: Annotated[float, typer.Option(help="Of the distillation.")] = 2.0,
    also: Annotated[
        str, typer.Option(help="Adapt more than linear attention: softmax, mlp, or both.")
    ] = "",
    mixed_precision: Annotated[
        bool, typer.Option("--mixed-precision", help="Compute in bfloat16 where that is safe.")
    ] = False,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
    ] = False,
    control: Annotated[
        bool, typer.Option("--control", help="Train the teacher instead, by the same recipe.")
    ] = False,
    layerwise: Annotated[
        bool, typer.Option("--layerwise", help="Repair one mixer at a time, for huge models.")
    ] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="Split the models over torchrun's processes (FSDP2).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the adapters' first values.")] = 0,
    save_every: Annotated[int, typer.Option(help="Steps between two saved states.")] = 100,
    report_to: Annotated[
        str, typer.Option(help="Trackers of transformers' Trainer, such as tensorboard,wandb.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on after an interruption.")] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Distil the original model into a pruned one, and write an ordinary checkpoint."""
    from . import recovery_console as console
    from .ranks import is_lead
    from .recovery import recover as run

    opened = _open(model, family)
    with console.training_progress() as (announce, progress):
        recovered = run(
            opened,
            teacher=_open(teacher, family) if teacher else None,
            text=text,
            tokens=_count(tokens),
            out=output,
            length=length,
            skip=_count(skip),
            rank=rank,
            alpha=alpha,
            learning_rate=learning_rate,
            batch_size=batch_size,
            micro_batch=micro_batch,
            temperature=temperature,
            also=_names(also),
            mixed_precision=mixed_precision,
            gradient_checkpointing=gradient_checkpointing,
            control=control,
            layerwise=layerwise,
            shard=shard,
            seed=seed,
            save_every=save_every,
            report_to=_names(report_to),
            resume=resume,
            announce=announce,
            progress=progress,
        )
    if is_lead():
        console.show_recovery(recovered, str(output), as_json=as_json)


@app.command()
def benchmark(
    models: Annotated[list[str], typer.Argument(help="Checkpoint directories to time.")],
    baseline: Annotated[str, typer.Option(help="The model before the cut.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the JSON is written.")],
    batch_sizes: Annotated[
        str | None, typer.Option(help="Such as 1,16,64 (GPU: 32, as in the paper).")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens of a prompt, such as 256,2k (GPU: 2k).")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns that each model takes.")] = 7,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16; else as stored.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="'vllm' starts a vLLM server on loopback instead.")
    ] = None,
    engine_python: Annotated[
        Path | None, typer.Option(help="Python of the environment that vLLM is in.")
    ] = None,
    requests: Annotated[int, typer.Option(help="With --engine: sequences sent at once.")] = 64,
    memory_gib: Annotated[float, typer.Option(help="With --engine: its cache.")] = 0.25,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="With --engine: as vLLM has it by default.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Time models in turns, or count how many sequences a vLLM server holds."""
    from . import benchmarking, load_testing, serving_console
    from .vllm_server import Load

    _refuse_existing(output)
    sizes = None if batch_sizes is None else [_count(part) for part in batch_sizes.split(",")]
    tokens = None if lengths is None else [_count(part) for part in lengths.split(",")]
    if dtype not in (None, "float32", "float16", "bfloat16"):
        raise StatetrimError(f"--dtype is float32, float16 or bfloat16, not {dtype!r}")
    if engine not in (None, "vllm"):
        raise StatetrimError(f"--engine is 'vllm', or left out for this process, not {engine!r}")
    opened = [_open(model, family) for model in (baseline, *models)]
    with serving_console.settings_progress() as progress:
        if engine:
            timings = load_testing.benchmark_served(
                opened[1:],
                baseline=opened[0],
                python=engine_python or Path(sys.executable),
                loads=[
                    Load(
                        requests=requests,
                        length=length,
                        memory=int(memory_gib * 2**30),
                        prefix_caching=prefix_caching,
                    )
                    for length in tokens or [1024]
                ],
                progress=progress,
            )
        else:
            timings = benchmarking.benchmark(
                opened[1:],
                baseline=opened[0],
                batches=sizes,
                lengths=tokens,
                rounds=rounds,
                dtype=dtype,
                progress=progress,
            )
    timings.save(output)
    serving_console.show_timings(timings, str(output), as_json=as_json)


@app.command()
def report(
    artifacts: Annotated[
        list[Path],
        typer.Argument(help="Checkpoints before and after the cut, and JSON files of statetrim."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory for report.html and report.md.")
    ],
    as_json: Json = False,
) -> None:
    """Write one page that shows what was cut, what it saves and what it costs."""
    from . import console
    from .reporting import report as run

    page = run(artifacts, output)
    if as_json:
        console.show_json({"html": str(page), "markdown": str(page.with_suffix(".md"))})
    else:
        print(f"written to {page} and {page.with_suffix('.md').name} beside it")


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory for the models and the report.")
    ] = Path("statetrim-demo"),
) -> None:
    """Train a tiny model here, cut it by three methods, and show what each costs."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    from . import console
    from . import demo as walk

    logging.getLogger("statetrim").setLevel(logging.ERROR)

    def command(arguments: list[str], quiet: bool) -> None:
        with console.muted(quiet):
            app(arguments, standalone_mode=False)

    walk.run(output, command, console.show_line, console.steps_progress("training"))


def main() -> None:
    """Run the command line: a user's mistake is one sentence and exit code 2."""
    # Our own progress and notes, not those of the libraries underneath.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = logging.StreamHandler()
    handler.addFilter(_once)
    logging.basicConfig(format="%(message)s", level=logging.ERROR, handlers=[handler])
    logging.getLogger("statetrim").setLevel(logging.INFO)
    try:
        app()
    except StatetrimError as error:
        _fail(error, 2)
    except OSError as error:
        _fail(error, 1)


_told: set[str] = set()


def _once(record: logging.LogRecord) -> bool:
    """A run that loads models ten times says once where they run."""
    new = record.getMessage() not in _told
    _told.add(record.getMessage())
    return new


def _fail(error: Exception, code: int) -> None:
    if _state["traceback"]:
        raise error
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {text}"
    # Names in a stranger's file may hold line breaks or terminal codes.
    sentence = "".join(c if c.isprintable() else " " for c in text)
    print(f"statetrim: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


def _open(model: str, family: Path | None) -> Any:
    from .checkpoint import open_checkpoint
    from .families import family_from_file

    return open_checkpoint(model, family_from_file(family) if family else None)


def _wanted(
    model: Any,
    keep: str | None,
    keep_values: str | None,
    square: str | None,
    state_mib: float | None,
    sequences: int | None,
    memory_gib: float | None,
) -> tuple[str | int | None, str | int | None]:
    """What to keep of keys and of values, from the one of several wishes that was made."""
    from .budget import MIB, share_of, widest_that_fits
    from .serving import StateSize, stored_dtype

    if (sequences is None) != (memory_gib is None):
        raise StatetrimError("--sequences and --memory-gib go together; give both or neither")
    wishes = [keep is not None or keep_values is not None, square, state_mib, sequences]
    if sum(bool(wish) for wish in wishes) != 1:
        raise StatetrimError(
            "say once what to keep: --keep 64 (and --keep-values), --square 64, "
            "--state-mib-per-sequence 40, or --sequences 64 --memory-gib 24"
        )
    if state_mib is None and sequences is None:
        return _widths(model, keep, keep_values, square)
    most = state_mib * MIB if state_mib is not None else share_of(memory_gib or 0.0, sequences or 0)
    dtype = stored_dtype(model)
    found = widest_that_fits(
        model.geometry, most, lambda geometry: StateSize.of(geometry, dtype).total, square=False
    )
    return found.head_k_dim, None


def _widths(
    model: Any, keep: str | None, keep_values: str | None, square: str | None
) -> tuple[str | None, str | None]:
    """What to keep of keys and of values."""
    from .geometry import resolve_square

    if square is None:
        return keep, keep_values
    if keep or keep_values:
        raise StatetrimError("--square says what to keep of both axes; leave out the other two")
    keys, values = resolve_square(square, model.geometry)
    return str(keys) if keys else None, str(values) if values else None


def _parse_options(pairs: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise StatetrimError(f"--option takes NAME=VALUE, such as score=q, not {pair!r}")
        if name in ("model", "method", "keep", "seed", "progress"):
            raise StatetrimError(f"{name!r} is not an option of a method; leave out --option")
        try:
            options[name] = json.loads(text)
        except (ValueError, RecursionError):
            options[name] = text
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _count(text: str) -> int:
    """4096, 256k or 64m; k is 1024, as token counts are usually meant."""
    number, unit = text[:-1], text[-1:].lower()
    scale = {"k": 2**10, "m": 2**20, "g": 2**30}.get(unit)
    digits = text if scale is None else number
    if not digits.isdecimal() or len(digits) > 12:
        raise StatetrimError(f"{text!r} is not a number of tokens; write 4096 or 256k")
    return int(digits) * (scale or 1)


def _refuse_existing(output: Path) -> None:
    if output.exists():
        raise StatetrimError(f"{output} exists already and is not overwritten; choose another name")
