"""Checkpoints -> Timings: how many sequences a vLLM server holds, by its own counters."""

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
    """Put every load on a vLLM server of each model, one after the other, with the same memory.

    `python` is that of the environment vLLM is installed in.
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
    lineage = {
        "statetrim": __version__,
        "engine": "vllm",
        "loads": [asdict(load) for load in loads],
        "log": logs,
        "models": {
            name: {
                "model_type": checkpoint.config["model_type"],
                "head_k_dim": checkpoint.geometry.head_k_dim,
                "head_v_dim": checkpoint.geometry.head_v_dim,
            }
            for name, checkpoint in zip(names, checkpoints, strict=True)
        },
    }
    return Timings(names, records, lineage)


def _timings_of_load(
    name: str, load: ServerLoad, result: LoadResult, baseline_result: LoadResult | None
) -> list[Timing]:
    def metrics_of(load_result: LoadResult) -> dict[str, tuple[float, str]]:
        return {
            "concurrent sequences": (load_result.max_running, "sequences"),
            "cache blocks": (load_result.blocks, "blocks"),
            "cache use": (load_result.max_cache_use, "share"),
            "preemptions": (load_result.preemptions, "requests"),
            "served decode": (load_result.generated / load_result.seconds, "tokens/s"),
        }

    baseline_metrics = {} if baseline_result is None else metrics_of(baseline_result)
    return [
        Timing(
            name,
            metric,
            load.requests,
            load.length,
            value,
            unit,
            ratio=value / baseline_metrics[metric][0]
            if metric in baseline_metrics and baseline_metrics[metric][0]
            else None,
        )
        for metric, (value, unit) in metrics_of(result).items()
    ]
