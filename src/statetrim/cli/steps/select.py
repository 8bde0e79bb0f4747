"""statetrim select"""

from pathlib import Path
from typing import Annotated

import typer

from ...defaults import HEAD_METHOD, KEY_METHOD, VALUE_METHOD
from .. import arguments, checks
from ..app import app
from ..arguments import (
    FamilyFile,
    Json,
    Keep,
    KeepHeads,
    KeepValues,
    Model,
    Share,
    Square,
    Widths,
)

Output = Annotated[Path, typer.Option("-o", "--output", help="File to write the plan to.")]
Statistics = Annotated[
    Path | None,
    typer.Option(
        help="Statistics from calibrate, for methods that need them.", callback=checks.must_exist
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="Selection method for key channels; l1 needs no statistics but loses more.",
        callback=checks.method,
    ),
]
Seed = Annotated[
    int, typer.Option(help="Random seed, for methods that use one.", callback=checks.seed)
]
Option = Annotated[list[str] | None, typer.Option(help="An option of the method, such as score=q.")]
ValueMethod = Annotated[
    str,
    typer.Option(
        help="Selection method for value channels; readout_l1 needs no statistics.",
        callback=checks.method,
    ),
]
ValueOption = Annotated[list[str] | None, typer.Option(help="An option of the value method.")]
HeadMethod = Annotated[
    str, typer.Option(help="Selection method for whole heads.", callback=checks.method)
]


@app.command()
def select(
    model: Model,
    output: Output,
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    widths: Widths = None,
    keep_heads: KeepHeads = None,
    statistics: Statistics = None,
    method: Method = KEY_METHOD,
    seed: Seed = 0,
    option: Option = None,
    value_method: ValueMethod = VALUE_METHOD,
    value_option: ValueOption = None,
    head_method: HeadMethod = HEAD_METHOD,
    share: Share = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Choose which channels or heads to keep, and write them to a plan."""
    options = arguments.parse_method_options(option or [])
    value_options = arguments.parse_method_options(value_option or [])
    shares = arguments.parse_shares(share or [])
    arguments.check_output_free(output)
    from ...artifacts.plan import Plan
    from ...console.progress import show_progress
    from ...console.steps.select import show_plan
    from ...selection.select import select as run
    from ...storage.checkpoint import require_prunable
    from ...storage.output import run_and_save

    opened = require_prunable(arguments.open_model(model, family))

    def choose(directory: Path | None) -> Plan:
        with show_progress("selecting") as progress:
            return run(
                opened,
                method,
                keep,
                keep_values=keep_values,
                square=square,
                widths=widths,
                keep_heads=keep_heads,
                head_method=head_method,
                value_method=value_method,
                value_options=value_options,
                seed=seed,
                statistics=statistics,
                shares=shares,
                progress=progress,
                **options,
            )

    record = {
        "format": "statetrim select",
        "source": opened.digest,
        "keep": [keep, keep_values, square, *([widths] if widths else [])],
        "methods": [method, options, value_method, value_options, seed],
        "statistics": [str(statistics), dict(shares or {})],
    } | ({"heads": [keep_heads, head_method]} if keep_heads else {})
    plan = run_and_save(output, record, choose, Plan.load)
    show_plan(plan, opened.geometry, str(output), as_json=as_json)
