"""Shrink the recurrent state of linear-attention models after training.

The names below are the whole public interface; they are imported on first use, so that
`import statetrim` costs nothing. (No module may have the name of a public function: once imported,
it would stand in the function's place.)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import analyze
    from .analysis_file import Analysis
    from .benchmarking import benchmark
    from .calibration import calibrate
    from .checkpoint import Checkpoint
    from .checkpoint import open_checkpoint as open
    from .errors import StatetrimError
    from .evaluation import evaluate
    from .family import Family
    from .geometry import ChannelRows, Geometry, rows
    from .loading import load
    from .method import Evidence, ValueEvidence, needs, serves, top
    from .plan import Plan
    from .pruning import prepare, prune
    from .recovery import recover
    from .refitting import refit
    from .reporting import report
    from .scores import Score, Scores
    from .selection import select
    from .serving import StateReport, inspect
    from .statistics import LayerStatistics, Statistics, merge
    from .sweep_file import Sweep
    from .sweeping import sweep
    from .timings import Timing, Timings
    from .trimming import trim
    from .version import __version__

_HOME = {
    "Analysis": "analysis_file",
    "ChannelRows": "geometry",
    "Checkpoint": "checkpoint",
    "Evidence": "method",
    "Family": "family",
    "Geometry": "geometry",
    "Plan": "plan",
    "StateReport": "serving",
    "StatetrimError": "errors",
    "ValueEvidence": "method",
    "__version__": "version",
    "LayerStatistics": "statistics",
    "Statistics": "statistics",
    "Sweep": "sweep_file",
    "Score": "scores",
    "Scores": "scores",
    "Timing": "timings",
    "Timings": "timings",
    "analyze": "analysis",
    "benchmark": "benchmarking",
    "calibrate": "calibration",
    "evaluate": "evaluation",
    "inspect": "serving",
    "load": "loading",
    "merge": "statistics",
    "needs": "method",
    "open": "checkpoint",
    "prepare": "pruning",
    "prune": "pruning",
    "recover": "recovery",
    "report": "reporting",
    "refit": "refitting",
    "rows": "geometry",
    "select": "selection",
    "sweep": "sweeping",
    "serves": "method",
    "top": "method",
    "trim": "trimming",
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
