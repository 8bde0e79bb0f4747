"""One shape, cut and measured: the cut is on disk only while it is needed."""

import shutil
from pathlib import Path

from ..artifacts.scores import Scores
from ..geometry import Geometry
from ..storage.output import complete
from .stages import Run


def shape_name(after: Geometry) -> str:
    return f"{after.head_k_dim}x{after.head_v_dim}"


def measure(stages: Run) -> Scores:
    """The original and the cut of `stages`' job, side by side; a plan and the scores stay."""
    job, directory = stages.job, stages.directory
    name = shape_name(job.after)
    path = directory / f"scores-{name}.json"
    if not complete(path):
        cut = stages.pruned(f"cut-{name}", stages.plan(plan_name(job.after)))
        stages.scores([stages.refitted(cut, f"fitted-{name}") if job.refits else cut], path)
    for folder in (f"cut-{name}", f"fitted-{name}"):
        shutil.rmtree(directory / folder, ignore_errors=True)
    Path(directory / f"fitted-{name}-statistics.safetensors").unlink(missing_ok=True)
    return Scores.load(path)


def plan_name(after: Geometry) -> str:
    return f"plan-{shape_name(after)}.json"
