"""statetrim trim"""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...common_options import parse_names
from ...pipelines.options import TrimRunOptions
from .. import arguments
from ..arguments import FamilyFile, Json, Model
from ..command import command, command_line_fields, typed_default

Sweep = Annotated[
    str | None,
    typer.Option(help="Measure several shapes, such as 96,64,48x48, plot them and recommend one."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and its estimated cost, and stop.")
]


def _load_recipe_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Set the defaults of all options to the recipe's values, and return `path`; options on the
    command line take precedence. Raises StatetrimError if the recipe is not valid."""
    if path is not None and not context.resilient_parsing:
        from ...pipelines.recipe import read_recipe

        values = read_recipe(path)
        for item in command_line_fields(TrimRunOptions):
            name = {"out": "output"}.get(item.name, item.name.rstrip("_"))
            if name in values:
                values[item.name] = typed_default(item, values[name])
        if isinstance(values.get("sweep"), list):
            values["sweep"] = ",".join(map(str, values["sweep"]))
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
    sweep: Sweep = None,
    recipe: Recipe = None,
    dry_run: DryRun = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    opened = arguments.open_model(model, family, weights="headers" if dry_run else True)
    if sweep is None:
        _trim(opened, options, dry_run=dry_run, as_json=as_json)
    else:
        shapes = parse_names(sweep)
        _sweep(opened, shapes, options, dry_run=dry_run, as_json=as_json)


def _trim(model: Any, options: TrimRunOptions, *, dry_run: bool, as_json: bool) -> None:
    from ...pipelines import trim as trimming
    from ...pipelines.estimate import Machine
    from ...pipelines.job import Job
    from ...pipelines.steps import steps
    from .observer import TerminalObserver
    from .planned_steps import show_steps
    from .result import show_trimmed

    job = Job.from_options(model, options)
    job.check()
    is_finished = trimming.is_finished(job, options.out)
    planned_steps = steps(job, Machine.measure(options.placement))
    if dry_run or not (as_json or is_finished):
        show_steps(job, planned_steps, str(options.out), dry_run=dry_run, as_json=as_json)
    if not dry_run:
        observer = TerminalObserver(planned_steps)
        cut = trimming.run(job, options.out, observer)
        show_trimmed(cut, job, observer, as_json=as_json)


def _sweep(
    model: Any, shapes: list[str], options: TrimRunOptions, *, dry_run: bool, as_json: bool
) -> None:
    """Check the job of each shape in `sweep`, separated by commas, print the estimated steps,
    measure the shapes and print the result.

    A dry run ends after the steps; else they are not printed with --json or for a finished result.
    """
    from ...pipelines import sweep as sweeping
    from ...pipelines.estimate import Machine
    from ...pipelines.steps import sweep_steps
    from .observer import TerminalObserver
    from .sweep import show_sweep, show_sweep_steps

    output = Path(options.out)
    jobs = sweeping.jobs_by_shape(model, shapes, options)
    for job in jobs.values():
        job.check()
    is_finished = sweeping.is_finished(model, shapes, options, output)
    planned_steps = sweep_steps(jobs, Machine.measure(options.placement))
    if dry_run or not (as_json or is_finished):
        show_sweep_steps(jobs, planned_steps, str(output), dry_run=dry_run, as_json=as_json)
    if not dry_run:
        result = sweeping.run(model, jobs, options, output, TerminalObserver(planned_steps))
        show_sweep(result, str(output), as_json=as_json)
