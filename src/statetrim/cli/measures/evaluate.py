"""statetrim evaluate"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import arguments, checks
from ..app import app, print_error
from ..arguments import Device, DeviceMap, Dtype, Json, MaxMemory

StateDtype = Annotated[
    str,
    typer.Option(
        help="Store the states of all models except the baseline in bfloat16, float16, "
        "float8_e4m3fn or int8, rounded after every decoded token and every piece of "
        "a prompt."
    ),
]
StatePiece = Annotated[
    int, typer.Option(help="Tokens per piece of a prompt; 1 rounds after every token.")
]
StateStochastic = Annotated[
    bool, typer.Option("--state-stochastic", help="Use stochastic rounding.")
]

Models = Annotated[list[str], typer.Argument(help="Checkpoints to compare with the baseline.")]
Baseline = Annotated[str, typer.Option(help="The original checkpoint.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="File to write the scores to.")]
Tasks = Annotated[
    str,
    typer.Option(
        help="Tasks or suites (likelihood, recall, offline), separated by commas.",
        callback=checks.tasks,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Directory with the tasks' data files; by default they come from the hub."),
]
Text = Annotated[
    str | None,
    typer.Option(help="Your own text, for the task 'text'.", callback=checks.text_source),
]
Skip = Annotated[
    str,
    typer.Option(help="Tokens to skip at the start of that text.", callback=checks.token_counts),
]
Limit = Annotated[
    int | None, typer.Option(help="Use only this many samples per task, for a quick look.")
]
BatchSize = Annotated[
    int, typer.Option(help="Sequences per forward pass.", callback=checks.at_least_one)
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        help="Exit with code 1 if this holds: 'recall drop > 2%' (or: > 2 points), 'not ship'.",
        callback=checks.rules,
    ),
]
Engine = Annotated[
    str, typer.Option(help="hf (transformers), or vllm if it is installed in this environment.")
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE for vLLM, such as tensor_parallel_size=2, dtype=bfloat16."),
]
Layerwise = Annotated[
    bool,
    typer.Option("--layerwise", help="Stream weights from disk, for models larger than memory."),
]


@app.command()
def evaluate(
    models: Models,
    baseline: Baseline,
    output: Output,
    tasks: Tasks = "offline",
    data: Data = None,
    text: Text = None,
    skip: Skip = "0",
    limit: Limit = None,
    batch_size: BatchSize = 8,
    fail_if: FailIf = None,
    engine: Engine = "hf",
    engine_option: EngineOption = None,
    state_dtype: StateDtype = "float32",
    state_piece: StatePiece = 64,
    state_stochastic: StateStochastic = False,
    layerwise: Layerwise = False,
    device: Device = None,
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Score models and their original on the same samples, and report what was lost."""
    from ...console.measures.evaluate import show_scores
    from ...console.progress import show_progress
    from ...evaluation.evaluate import evaluate as run
    from ...judging.gate import find_violation
    from ...progress import is_rank_zero
    from ...runtime.states.stored import StateStorage
    from ...serving.deployment import ship_verdicts

    with show_progress() as progress:
        scores = run(
            models,
            baseline=baseline,
            tasks=[name.strip() for name in tasks.split(",")],
            data=data,
            text=text,
            skip=skip,
            limit=limit,
            batch_size=batch_size,
            engine=engine,  # type: ignore[arg-type]
            engine_options=arguments.parse_named_values(
                engine_option or [], "--engine-option", "dtype=bfloat16"
            ),
            layerwise=layerwise,
            storage=StateStorage(state_dtype, state_piece, state_stochastic),
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            dtype=dtype,
            out=output,
            progress=progress,
        )
    if not is_rank_zero():
        return
    verdicts = ship_verdicts(scores, models)
    show_scores(scores, verdicts, str(output), as_json=as_json)
    for rule in fail_if or []:
        violation = find_violation(rule, scores, verdicts)
        if violation:
            print_error(violation)
            sys.exit(1)
