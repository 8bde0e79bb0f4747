"""statetrim inspect"""

from typing import Annotated

import typer

from .. import arguments
from ..app import app
from ..arguments import FamilyFile, Json, Keep, KeepHeads, KeepValues, Model, Square


@app.command()
def inspect(
    model: Model,
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    keep_heads: KeepHeads = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Cache memory in GiB; shows how many sequences fit.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens per sequence, with --memory-gib; 4096 by default.")
    ] = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Show a model's recurrent state, its size after a cut, and which engines serve that shape."""
    from ...console.measures.inspect import show_report
    from ...serving.inspect import inspect as run

    opened = arguments.open_model(model, family, weights=False)
    report = run(
        opened,
        keep,
        keep_values,
        square=square,
        keep_heads=keep_heads,
        memory_gib=memory_gib,
        context=context,
    )
    show_report(report, as_json=as_json)
