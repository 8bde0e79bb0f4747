"""Checkpoints -> Timings: how many sequences a vLLM server holds, by its own metrics."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..artifacts.timings import Timing, Timings, unique_names
from ..progress import OnProgress, Progress, ignore_progress
from ..storage.checkpoint import require_prunable
from ..storage.models import ModelLike, as_checkpoint, as_checkpoints
from ..version import __version__
from .vllm_server import LoadResult, ServerLoad, serve_under_load


def benchmark_vllm(
    models: ModelLike | Sequence[ModelLike],
    *,
    baseline: ModelLike,
    python: str | Path,
    loads: Sequence[ServerLoad],
    progress: OnProgress = ignore_progress,
) -> Timings:
    """Start a vLLM server for each load and model, one at a time, and return its metrics.

    `python` is the executable of the environment in which vLLM is installed. Raises StatetrimError
    if a model cannot be pruned, or if a server does not start or does not answer.
    """
    checkpoints = [require_prunable(m) for m in (as_checkpoint(baseline), *as_checkpoints(models))]
    names = unique_names([checkpoint.name for checkpoint in checkpoints])
    records: list[Timing] = []
    logs: dict[str, list[str]] = {}
    for load in loads:
        baseline_result: LoadResult | None = None
        for name, checkpoint in zip(names, checkpoints, strict=True):
            label = f"{name}, {load.length} tokens"
            progress(Progress(len(logs), len(loads) * len(checkpoints), "settings", label))
            result = serve_under_load(Path(python), checkpoint.path, load)
            records += _timings_of_load(name, load, result, baseline_result)
            logs[label] = result.cache_log
            baseline_result = baseline_result or result
    model_lineage = {}
    for name, checkpoint in zip(names, checkpoints, strict=True):
        model_lineage[name] = {
            "model_type": checkpoint.config["model_type"],
            "head_k_dim": checkpoint.geometry.head_k_dim,
            "head_v_dim": checkpoint.geometry.head_v_dim,
        }
    lineage = {
        "statetrim": __version__,
        "engine": "vllm",
        "loads": [asdict(load) for load in loads],
        "log": logs,
        "models": model_lineage,
    }
    return Timings(names, records, lineage)


def _timings_of_load(
    name: str, load: ServerLoad, result: LoadResult, baseline_result: LoadResult | None
) -> list[Timing]:
    """A Timing per metric, with its ratio to the baseline's value.

    The ratio is None if that value is zero, and without `baseline_result`, for the baseline itself.
    """
    baseline_metrics = {} if baseline_result is None else _metrics(baseline_result)
    timings = []
    for metric, (value, unit) in _metrics(result).items():
        baseline_value, _ = baseline_metrics.get(metric, (0.0, unit))
        ratio = value / baseline_value if baseline_value else None
        timing = Timing(name, metric, load.requests, load.length, value, unit, ratio=ratio)
        timings.append(timing)
    return timings


def _metrics(result: LoadResult) -> dict[str, tuple[float, str]]:
    """Metric -> (value, unit); tokens/s are generated tokens over the time of the whole load."""
    return {
        "concurrent sequences": (result.max_running, "sequences"),
        "cache blocks": (result.blocks, "blocks"),
        "cache use": (result.max_cache_use, "share"),
        "preemptions": (result.preemptions, "requests"),
        "served decode": (result.generated / result.seconds, "tokens/s"),
    }
