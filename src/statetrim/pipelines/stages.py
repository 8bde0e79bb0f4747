"""The stages of a run, each of which makes its artifact unless it is there."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ..artifacts.card.model_card import with_measurements
from ..artifacts.plan import Plan
from ..artifacts.scores import Scores
from ..artifacts.statistics import Statistics
from ..benchmarking.benchmark import benchmark
from ..calibration.calibrate import calibrate
from ..defaults import HEAD_METHOD
from ..evaluation.evaluate import evaluate
from ..maths.units import MIB
from ..recovery.recover import recover
from ..runtime.placement import Placement
from ..selection.select import select_for_target
from ..serving.deployment import ship_verdict
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.json_file import read_json, write_json, write_text
from ..storage.output import ARTIFACTS, CARD, is_complete
from ..surgery.check import compare_cut
from ..surgery.prune import prune
from ..surgery.refit import refit
from .estimate import free_memory, needs_streaming
from .job import CONTROL_METHOD, RECOVERY_BATCH_SIZE, Job
from .observer import Observer

RECORD = "trim.json"
CHANGEABLE_OPTIONS = ("batch_size", "benchmark", "layerwise", "recover")
"""What a rerun may change, where a stage took more memory or time than there is."""
STATISTICS = "statistics.safetensors"
DECISION = "decision.json"  # where several shapes were compared


class StageRunner:
    """The stages, in order; each makes its artifact unless it is there.

    `methods` are those to calibrate for, where jobs with other methods share the statistics;
    `step` is the step of the estimate that all stages but calibration are a part of, where the run
    is one of several, and `shape` tells the stages of such runs apart.
    """

    def __init__(
        self,
        job: Job,
        directory: Path,
        observer: Observer,
        methods: Sequence[str] | None = None,
        step: str | None = None,
        shape: str = "",
    ) -> None:
        self.job, self.options = job, job.options
        self.directory, self.observer = directory, observer
        self.methods = job.calibrated_methods if methods is None else methods
        self.step, self.shape = step, shape

    def run_all(self, record: dict[str, Any]) -> Path:
        """Everything; the directory that is the result."""
        plan = self.ensure_plan()
        pruned = self.ensure_pruned("pruned", plan)
        checks = self.ensure_checks(plan, pruned)
        refitted = self.ensure_refitted(pruned) if self.job.runs_refit else pruned
        final = self.ensure_recovered(refitted) if self.job.recovery_tokens else refitted
        scores_path = self.directory / "scores.json"
        if not is_complete(scores_path):
            intermediate = [pruned] if final is not pruned else []
            self.ensure_scores([final, *intermediate, *self.ensure_control()], scores_path)
        if self.job.runs_benchmark:
            self.ensure_timings(final)
        scores, artifacts_dir = Scores.load(scores_path), final.path / ARTIFACTS
        for name in (STATISTICS, "scores.json", "timings.json", DECISION):
            if (self.directory / name).exists():
                _link_or_copy(self.directory / name, artifacts_dir / name)
        card = final.path / CARD
        verdict = ship_verdict(scores, scores.models[1], final)
        write_text(card, with_measurements(card.read_text(encoding="utf-8"), scores, verdict))
        findings = {"checks": checks, "warnings": list(verdict.warnings)}
        write_json(
            artifacts_dir / RECORD, record | findings | {"measured_from": self.job.eval_offset}
        )
        return final.path

    @property
    def _where(self) -> dict[str, Any]:
        """Where models run, for functions that take it by name."""
        return {
            field.name: getattr(self.options.placement, field.name) for field in fields(Placement)
        }

    def ensure_refitted(self, pruned: Checkpoint, name: str = "refitted") -> Checkpoint:
        """The output projections refitted to the remaining read-out."""
        job, out = self.job, self.directory / name
        path = self.directory / f"{name}-statistics.safetensors"
        if job.removes_heads:  # the heads that are left read out what they did before
            path = self.directory / STATISTICS

        def collect() -> None:
            self._calibrate("calibrating for the refit", pruned, path, original=job.model)

        def make() -> None:
            with self.observer.progress("refitting") as progress:
                refit(pruned, Statistics.load(path), out=out, progress=progress)

        if not job.removes_heads and not is_complete(out):
            self._run_stage("refit", "calibrate for the refit", path, collect)
        self._run_stage("refit", "refit", out, make)
        return open_checkpoint(out, job.model.family)

    def ensure_recovered(self, pruned: Checkpoint) -> Checkpoint:
        job, options, out = self.job, self.options, self.directory / "recovered"

        def make() -> None:
            with self.observer.progress("recovering") as progress:
                recover(
                    pruned,
                    teacher=job.model,
                    text=options.text,
                    tokens=job.recovery_tokens,
                    skip=job.recovery_offset,
                    length=options.length,
                    batch_size=RECOVERY_BATCH_SIZE,
                    layerwise=options.placement.layerwise or options.device_map is not None,
                    device=options.device,
                    dtype=options.dtype,
                    seed=options.seed,
                    out=out,
                    on_coverage=self.observer.announce,
                    progress=progress,
                )

        self._run_stage("recover", "recover", out, make)
        return open_checkpoint(out, job.model.family)

    def ensure_timings(self, cut: Checkpoint) -> None:
        path = self.directory / "timings.json"

        def make() -> None:
            with self.observer.progress("timing") as progress:
                where = {name: value for name, value in self._where.items() if name != "layerwise"}
                benchmark(
                    [cut], baseline=self.job.model, rounds=3, out=path, progress=progress, **where
                )

        self._run_stage("benchmark", "benchmark", path, make)

    def ensure_statistics(self) -> Statistics | None:
        job, path = self.job, self.directory / STATISTICS
        if not self.methods:
            return None

        def make() -> None:
            self._calibrate("calibrating", job.model, path, methods=self.methods)

        self._run_stage("calibrate", "calibrate", path, make)
        return Statistics.load(path)

    def _calibrate(self, label: str, model: Checkpoint, path: Path, **extra: Any) -> None:
        with self.observer.progress(label) as progress:
            calibrate(
                model,
                self.options.text,
                tokens=self.job.tokens,
                recall=self.options.recall,
                random=self.options.random,
                seed=self.options.seed,
                length=self.options.length,
                batch_size=self.options.batch_size,
                **self._where,
                out=path,
                progress=progress,
                **extra,
            )

    def ensure_plan(self, name: str = "plan.json", method: str | None = None) -> Plan:
        job, path = self.job, self.directory / name
        statistics = None if method else self.ensure_statistics()

        def make() -> None:
            with self.observer.progress("selecting") as progress:
                select_for_target(
                    job.model,
                    job.target,
                    method or self.options.method,
                    {},
                    value_method=method or self.options.value_method,
                    value_options={},
                    head_method=method or HEAD_METHOD,
                    seed=self.options.seed,
                    statistics=statistics,
                    progress=progress,
                ).save(path)

        step = "evaluate" if method else "select"  # a control is chosen to be evaluated
        self._run_stage(step, f"select by {method or ' and '.join(job.methods)}", path, make)
        return Plan.load(path)

    def ensure_pruned(self, name: str, plan: Plan) -> Checkpoint:
        out = self.directory / name

        def make() -> None:
            with self.observer.progress("pruning") as progress:
                by_layer = bool(self.job.after.widths)
                prune(self.job.model, plan, out, uneven=by_layer, progress=progress)

        stage = "prune" if self.shape else f"prune ({name})"
        self._run_stage("evaluate" if name == CONTROL_METHOD else "prune", stage, out, make)
        return open_checkpoint(out, self.job.model.family)

    def ensure_checks(self, plan: Plan, cut: Checkpoint) -> dict[str, Any]:
        path, model = self.directory / "checks.json", self.job.model
        placement = self.options.placement
        if placement.device_map is None and needs_streaming(model, 4, free_memory(placement)):
            placement = replace(placement, layerwise=True)  # both models at once, in float32

        def make() -> None:
            write_json(path, asdict(compare_cut(model, plan, cut, placement=placement)))

        self._run_stage("check", "check", path, make)
        return read_json(path, MIB)

    def ensure_control(self) -> list[Checkpoint]:
        """A random cut to the same shape: what a method must beat."""
        if not self.job.runs_control:
            return []
        return [
            self.ensure_pruned(
                CONTROL_METHOD, self.ensure_plan(f"plan-{CONTROL_METHOD}.json", CONTROL_METHOD)
            )
        ]

    def ensure_scores(self, models: list[Checkpoint], path: Path) -> None:
        job, options = self.job, self.options

        def make() -> None:
            with self.observer.progress("evaluating") as progress:
                evaluate(
                    models,
                    baseline=job.model,
                    tasks=options.tasks,
                    data=options.data,
                    text=options.text if "text" in options.tasks else None,
                    skip=job.eval_offset,
                    limit=options.limit,
                    batch_size=options.batch_size,
                    storage=options.storage,
                    **self._where,
                    out=path,
                    progress=progress,
                )

        self._run_stage("evaluate", "evaluate", path, make)

    def _run_stage(self, step: str, name: str, artifact: Path, make: Callable[[], None]) -> None:
        shared = step == "calibrate"
        self.observer.on_step(step if shared else self.step or step)
        if self.shape and not shared:
            name = f"{name} ({self.shape})"
        if is_complete(artifact):
            self.observer.on_cached(name)
        else:
            self.observer.on_start(name)
            make()


def _link_or_copy(source: Path, target: Path) -> None:
    """The same file under a second name, or a copy where the disk knows no links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
