"""Shrink the recurrent state of linear-attention models after training.

The names below are the whole public interface; they are imported on first use, so that
`import statetrim` costs nothing. (No module may have the name of a public function: once imported,
it would stand in the function's place.)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis.analyze import analyze
    from .artifacts.analysis import Analysis
    from .artifacts.plan import Plan
    from .artifacts.scores import Score, Scores
    from .artifacts.statistics import LayerStatistics, Statistics, merge
    from .artifacts.sweep import Sweep
    from .artifacts.timings import Timing, Timings
    from .benchmarking.benchmark import benchmark
    from .calibration.calibrate import calibrate
    from .errors import StatetrimError
    from .evaluation.evaluate import evaluate
    from .families.contract import Family
    from .geometry import ChannelRows, Geometry, rows
    from .methods.contract import Evidence, ValueEvidence, needs, serves, top
    from .pipelines.sweep import sweep
    from .pipelines.trim import trim
    from .recovery.recover import recover
    from .reporting.report import report
    from .runtime.loading import load
    from .selection.select import select
    from .serving.inspect import StateReport, inspect
    from .storage.checkpoint import Checkpoint
    from .storage.checkpoint import open_checkpoint as open
    from .surgery.prune import prepare, prune
    from .surgery.refit import refit
    from .version import __version__

_HOME = {
    "Analysis": "artifacts.analysis",
    "ChannelRows": "geometry",
    "Checkpoint": "storage.checkpoint",
    "Evidence": "methods.contract",
    "Family": "families.contract",
    "Geometry": "geometry",
    "Plan": "artifacts.plan",
    "StateReport": "serving.inspect",
    "StatetrimError": "errors",
    "ValueEvidence": "methods.contract",
    "__version__": "version",
    "LayerStatistics": "artifacts.statistics",
    "Statistics": "artifacts.statistics",
    "Sweep": "artifacts.sweep",
    "Score": "artifacts.scores",
    "Scores": "artifacts.scores",
    "Timing": "artifacts.timings",
    "Timings": "artifacts.timings",
    "analyze": "analysis.analyze",
    "benchmark": "benchmarking.benchmark",
    "calibrate": "calibration.calibrate",
    "evaluate": "evaluation.evaluate",
    "inspect": "serving.inspect",
    "load": "runtime.loading",
    "merge": "artifacts.statistics",
    "needs": "methods.contract",
    "open": "storage.checkpoint",
    "prepare": "surgery.prune",
    "prune": "surgery.prune",
    "recover": "recovery.recover",
    "report": "reporting.report",
    "refit": "surgery.refit",
    "rows": "geometry",
    "select": "selection.select",
    "sweep": "pipelines.sweep",
    "serves": "methods.contract",
    "top": "methods.contract",
    "trim": "pipelines.trim",
}
_RENAMED = {"open": "open_checkpoint"}

__all__ = [
    "Analysis",
    "ChannelRows",
    "Checkpoint",
    "Evidence",
    "Family",
    "Geometry",
    "LayerStatistics",
    "Plan",
    "Score",
    "Scores",
    "StateReport",
    "StatetrimError",
    "Statistics",
    "Sweep",
    "Timing",
    "Timings",
    "ValueEvidence",
    "__version__",
    "analyze",
    "benchmark",
    "calibrate",
    "evaluate",
    "inspect",
    "load",
    "merge",
    "needs",
    "open",
    "prepare",
    "prune",
    "recover",
    "refit",
    "report",
    "rows",
    "select",
    "serves",
    "sweep",
    "top",
    "trim",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
