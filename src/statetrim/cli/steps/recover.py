"""statetrim recover"""

from pathlib import Path
from typing import Annotated

import typer

from .. import arguments, checks
from ..app import app
from ..arguments import Device, Dtype, FamilyFile, Json

Model = Annotated[str, typer.Argument(help="The pruned checkpoint.")]
Text = Annotated[
    str,
    typer.Option(
        help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset.",
        callback=checks.text_source,
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Output directory.")]
Teacher = Annotated[
    str | None,
    typer.Option(help="The original checkpoint; without it, training uses cross-entropy only."),
]
Tokens = Annotated[
    str, typer.Option(help="Number of tokens to train on.", callback=checks.token_counts)
]
Length = Annotated[int, typer.Option(help="Tokens per sequence.", callback=checks.at_least_one)]
Skip = Annotated[
    str, typer.Option(help="Tokens to skip at the start of the text.", callback=checks.token_counts)
]
BatchSize = Annotated[int, typer.Option(help="Sequences per step, over all processes.")]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        help="Sequences per forward pass in one process; fewer need less memory.",
        callback=checks.at_least_one,
    ),
]
Rank = Annotated[int, typer.Option(help="Rank of the LoRA adapters.")]
Alpha = Annotated[int, typer.Option(help="Scale of the LoRA adapters times their rank.")]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate; it decays to a tenth.")]
Temperature = Annotated[float, typer.Option(help="Temperature of the distillation.")]
Also = Annotated[str, typer.Option(help="Also adapt other modules: softmax, mlp, or both.")]
MixedPrecision = Annotated[
    bool, typer.Option("--mixed-precision", help="Compute in bfloat16 where that is safe.")
]
GradientCheckpointing = Annotated[
    bool,
    typer.Option("--gradient-checkpointing", help="Recompute activations: less memory, more time."),
]
Control = Annotated[
    bool,
    typer.Option(
        "--control", help="Train the teacher instead with the same settings, as a control."
    ),
]
Layerwise = Annotated[
    bool,
    typer.Option("--layerwise", help="Train one mixer at a time, for models larger than memory."),
]
Shard = Annotated[
    bool, typer.Option("--shard", help="Shard the models over torchrun's processes (FSDP2).")
]
Seed = Annotated[
    int, typer.Option(help="Random seed of the adapters' initial values.", callback=checks.seed)
]
SaveEvery = Annotated[
    int, typer.Option(help="Steps between saved training states.", callback=checks.at_least_one)
]
ReportTo = Annotated[
    str, typer.Option(help="Trackers of transformers' Trainer, such as tensorboard,wandb.")
]
Recall = Annotated[
    float,
    typer.Option(
        help="Fraction of the tokens that are generated recall sequences, such as 0.5.",
        callback=checks.fraction,
    ),
]
Patience = Annotated[
    int,
    typer.Option(
        help="Stop when held-out recall has not improved for this many of "
        "its 20 checks; 0 never stops."
    ),
]
Layers = Annotated[
    str, typer.Option(help="Linear-attention layers to train, such as 0,4; by default all.")
]
Whole = Annotated[
    bool, typer.Option("--whole", help="Train all weights of the mixers instead of LoRA adapters.")
]


@app.command()
def recover(
    model: Model,
    text: Text,
    output: Output,
    teacher: Teacher = None,
    tokens: Tokens = "64m",
    length: Length = 2048,
    skip: Skip = "0",
    batch_size: BatchSize = 16,
    micro_batch: MicroBatch = None,
    rank: Rank = 16,
    alpha: Alpha = 32,
    learning_rate: LearningRate = 1e-4,
    temperature: Temperature = 2.0,
    also: Also = "",
    mixed_precision: MixedPrecision = False,
    gradient_checkpointing: GradientCheckpointing = False,
    control: Control = False,
    layerwise: Layerwise = False,
    shard: Shard = False,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = 0,
    save_every: SaveEvery = 100,
    report_to: ReportTo = "",
    recall: Recall = 0.0,
    patience: Patience = 0,
    layers: Layers = "",
    whole: Whole = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Distil the original model into a pruned one, and write an ordinary checkpoint."""
    from ...console.progress import show_progress
    from ...console.steps.recover import show_coverage, show_recovery
    from ...progress import is_rank_zero
    from ...recovery.options import RecoverOptions
    from ...recovery.recover import recover as run

    options = RecoverOptions(
        tokens=tokens,
        length=length,
        skip=skip,
        rank=rank,
        alpha=alpha,
        learning_rate=learning_rate,
        batch_size=batch_size,
        micro_batch=micro_batch,
        temperature=temperature,
        also=arguments.parse_names(also),
        mixed_precision=mixed_precision,
        gradient_checkpointing=gradient_checkpointing,
        control=control,
        layerwise=layerwise,
        shard=shard,
        device=device,
        dtype=dtype,
        seed=seed,
        save_every=save_every,
        report_to=arguments.parse_names(report_to),
        recall=recall,
        patience=patience,
        layers=arguments.parse_layer_numbers(layers),
        whole=whole,
    )
    opened = arguments.open_model(model, family)
    with show_progress("recovering") as progress:
        recovered = run(
            opened,
            options,
            teacher=arguments.open_model(teacher, family) if teacher else None,
            text=text,
            out=output,
            on_coverage=show_coverage,
            progress=progress,
        )
    if is_rank_zero():
        show_recovery(recovered, str(output), as_json=as_json)
