"""Checkpoints -> Timings: how many sequences a vLLM server holds, by its own counters."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..artifacts.timings import Timing, Timings, unique_names
from ..progress import OnProgress, Progress, ignore
from ..storage.checkpoint import with_weights
from ..storage.models import ModelLike, all_opened, opened
from ..version import __version__
from .vllm_server import Load, Served, serve_under_load


def benchmark_served(
    models: ModelLike | Sequence[ModelLike],
    *,
    baseline: ModelLike,
    python: str | Path,
    loads: Sequence[Load],
    progress: OnProgress = ignore,
) -> Timings:
    """Put every load on a vLLM server of each model, one after the other, with the same memory.

    `python` is that of the environment vLLM is installed in.
    """
    checkpoints = [with_weights(m) for m in (opened(baseline), *all_opened(models))]
    names = unique_names([checkpoint.name for checkpoint in checkpoints])
    records: list[Timing] = []
    logs: dict[str, list[str]] = {}
    for load in loads:
        before: Served | None = None
        for name, checkpoint in zip(names, checkpoints, strict=True):
            label = f"{name}, {load.length} tokens"
            progress(Progress(len(logs), len(loads) * len(checkpoints), "settings", label))
            served = serve_under_load(Path(python), checkpoint.path, load)
            records += _records(name, load, served, before)
            logs[label] = served.log
            before = before or served
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


def _records(name: str, load: Load, served: Served, before: Served | None) -> list[Timing]:
    def figures(of: Served) -> dict[str, tuple[float, str]]:
        return {
            "concurrent sequences": (of.most_running, "sequences"),
            "cache blocks": (of.blocks, "blocks"),
            "cache use": (of.most_cache_use, "share"),
            "preemptions": (of.preemptions, "requests"),
            "served decode": (of.generated / of.seconds, "tokens/s"),
        }

    first = {} if before is None else figures(before)
    return [
        Timing(
            name,
            metric,
            load.requests,
            load.length,
            value,
            unit,
            ratio=value / first[metric][0] if metric in first and first[metric][0] else None,
        )
        for metric, (value, unit) in figures(served).items()
    ]
