"""Prune to one shape and measure the cut."""

import shutil
from pathlib import Path

from ..artifacts.scores import Scores
from ..geometry import Geometry
from ..storage.output import is_complete, remove_empty_partial
from .stages import PLAN, PRUNED, REFITTED, StageRunner


def shape_name(after: Geometry) -> str:
    """Key x value channels per head, such as 64x64."""
    return f"{after.head_k_dim}x{after.head_v_dim}"


def plan_name(after: Geometry) -> str:
    """File name of the plan for a shape."""
    return f"plan-{shape_name(after)}.json"


def measure_cut(runner: StageRunner) -> Scores:
    """Scores of the original and of the cut of `runner.job`, in this order; those of an earlier run
    if it finished them.

    The plan, the scores, the cut and its refitted copy stay in `runner.directory`.
    """
    job, directory = runner.job, runner.directory
    name = shape_name(job.after)
    path = directory / f"scores-{name}.json"
    remove_empty_partial(path)
    if not is_complete(path):
        cut = runner.ensure_pruned(f"cut-{name}", runner.ensure_plan(plan_name(job.after)))
        if job.runs_refit:
            cut = runner.ensure_refitted(cut, f"fitted-{name}")
        runner.ensure_scores([cut], path)
    return Scores.load(path)


def delete_cut(runner: StageRunner) -> None:
    """Delete the cut of `runner.job`, its refitted copy and the statistics of the refit."""
    for path in _result_names(runner):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def adopt_cut(runner: StageRunner) -> None:
    """Rename what `measure_cut` made to the names under which the stages of a run look for it, so
    that nothing is made twice. A killed run continues with what is left."""
    plan = runner.directory / PLAN
    if not plan.exists():
        shutil.copyfile(runner.directory / plan_name(runner.job.after), plan)
    for path, name in _result_names(runner).items():
        if path.exists():
            path.rename(runner.directory / name)


def _result_names(runner: StageRunner) -> dict[Path, str]:
    """The files of a measured cut, with their names in a run of one shape."""
    name, directory = shape_name(runner.job.after), runner.directory
    return {
        directory / f"cut-{name}": PRUNED,
        directory / f"fitted-{name}-statistics.safetensors": f"{REFITTED}-statistics.safetensors",
        directory / f"fitted-{name}": REFITTED,
    }
