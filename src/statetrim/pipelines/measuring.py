"""Prune to one shape and measure the cut; the cut is deleted after it was measured."""

import shutil

from ..artifacts.scores import Scores
from ..geometry import Geometry
from ..storage.output import is_complete, remove_empty_partial
from .stages import StageRunner


def shape_name(after: Geometry) -> str:
    """Key x value channels per head, such as 64x64."""
    return f"{after.head_k_dim}x{after.head_v_dim}"


def measure_cut(runner: StageRunner) -> Scores:
    """Scores of the original and of the cut of `runner.job`, in this order; those of an earlier run
    if it finished them.

    The plan and the scores stay in `runner.directory`. The cut, its refitted copy and the
    statistics of the refit are deleted.
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
    for folder in (f"cut-{name}", f"fitted-{name}"):
        shutil.rmtree(directory / folder, ignore_errors=True)
    (directory / f"fitted-{name}-statistics.safetensors").unlink(missing_ok=True)
    return Scores.load(path)


def plan_name(after: Geometry) -> str:
    """File name of the plan for a shape."""
    return f"plan-{shape_name(after)}.json"
