"""statetrim trim, statetrim recipe"""

from pathlib import Path
from typing import Annotated

import typer

from ...pipelines.options import TrimRunOptions
from .. import arguments
from ..arguments import FamilyFile, Json, Model
from ..command import command, command_line_fields, typed_default

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the steps and what they take, and stop.")
]


def _load_recipe_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Make the recipe's values the defaults of all options, and return `path`."""
    if path is not None and not context.resilient_parsing:
        from ...pipelines.recipe import read_recipe

        values = read_recipe(path)
        for item in command_line_fields(TrimRunOptions):
            name = {"out": "output"}.get(item.name, item.name.rstrip("_"))
            if name in values:
                values[item.name] = typed_default(item, values[name])
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


@command(TrimRunOptions)
def trim(
    model: Model,
    options: TrimRunOptions,
    recipe: Recipe = None,
    dry_run: DryRun = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    from ...artifacts.decision import NoCutNeeded
    from ...pipelines import trim as trimming
    from ...pipelines.estimate import Estimate
    from ...pipelines.job import Job
    from .observer import TerminalObserver
    from .planned_steps import show_steps
    from .result import show_no_cut, show_trimmed

    opened = arguments.open_model(model, family, weights="headers" if dry_run else True)
    job = Job.from_options(opened, options)
    job.check()
    is_finished = trimming.is_finished(job, options.out)
    if dry_run and opened.downloaded and Path(options.text).exists():
        trimming.check_text(job)
    planned_steps = Estimate(job).steps()
    if dry_run or not (as_json or is_finished):
        show_steps(job, planned_steps, str(options.out), dry_run=dry_run, as_json=as_json)
    if not dry_run:
        observer = TerminalObserver(planned_steps)
        try:
            cut = trimming.run(job, options.out, observer)
        except NoCutNeeded as answer:
            show_no_cut(answer, job, as_json=as_json)
            return
        show_trimmed(cut, job, observer, as_json=as_json)


def recipe(
    result: Annotated[Path, typer.Argument(help="Output directory of trim.")],
) -> None:
    from ...pipelines.recipe import recipe_of_result, recipe_text

    print(recipe_text(recipe_of_result(result), str(result)), end="")
