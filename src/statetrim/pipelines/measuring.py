"""One shape, cut and measured: the cut is on disk only while it is needed."""

import shutil
from pathlib import Path

from ..artifacts.scores import Scores
from ..geometry import Geometry
from ..storage.output import is_complete
from .stages import StageRunner


def shape_name(after: Geometry) -> str:
    return f"{after.head_k_dim}x{after.head_v_dim}"


def measure_cut(runner: StageRunner) -> Scores:
    """The original and the cut of `stages`' job, side by side; a plan and the scores stay."""
    job, directory = runner.job, runner.directory
    name = shape_name(job.after)
    path = directory / f"scores-{name}.json"
    if not is_complete(path):
        cut = runner.ensure_pruned(f"cut-{name}", runner.ensure_plan(plan_name(job.after)))
        runner.ensure_scores(
            [runner.ensure_refitted(cut, f"fitted-{name}") if job.runs_refit else cut], path
        )
    for folder in (f"cut-{name}", f"fitted-{name}"):
        shutil.rmtree(directory / folder, ignore_errors=True)
    Path(directory / f"fitted-{name}-statistics.safetensors").unlink(missing_ok=True)
    return Scores.load(path)


def plan_name(after: Geometry) -> str:
    return f"plan-{shape_name(after)}.json"
