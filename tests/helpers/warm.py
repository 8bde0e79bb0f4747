"""Import what every command needs, before a fork: it is paid for once, and starts no thread."""

import importlib

MODULES = (
    "accelerate", "datasets", "peft", "torch", "torch._dynamo", "transformers",
    "transformers.trainer", "transformers.models.auto.modeling_auto", "matplotlib.pyplot",
    "statetrim.analysis.analyze", "statetrim.benchmarking.benchmark",
    "statetrim.calibration.calibrate", "statetrim.cli", "statetrim.console.progress",
    "statetrim.console.trim", "statetrim.evaluation.evaluate", "statetrim.pipelines.sweep",
    "statetrim.pipelines.trim", "statetrim.portable.causal_lm", "statetrim.recovery.trainer",
    "statetrim.recovery.distillation", "statetrim.reporting.report", "statetrim.selection.select",
    "statetrim.surgery.prune", "statetrim.surgery.refit", "statetrim.verification.verify",
)  # fmt: skip


def warm() -> None:
    for name in MODULES:
        importlib.import_module(name)
