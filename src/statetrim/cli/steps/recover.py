"""statetrim recover"""

from dataclasses import replace
from typing import Annotated

import typer

from ...recovery.options import RecoverRunOptions
from .. import arguments
from ..arguments import FamilyFile, Json
from ..command import command

Model = Annotated[str, typer.Argument(help="The pruned checkpoint.")]


@command(RecoverRunOptions)
def recover(
    model: Model, options: RecoverRunOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    """Distil the original model into a pruned one, and write an ordinary checkpoint."""
    from ...console.progress import show_progress
    from ...console.steps.recover import show_coverage, show_recovery
    from ...progress import is_rank_zero
    from ...recovery.recover import recover as run

    opened = arguments.open_model(model, family)
    if options.teacher is not None:
        options = replace(options, teacher=arguments.open_model(str(options.teacher), family))
    with show_progress("recovering") as progress:
        options = replace(options, on_coverage=show_coverage, progress=progress)
        recovered = run.run(opened, options)
    if is_rank_zero():
        show_recovery(recovered, str(options.out), as_json=as_json)
