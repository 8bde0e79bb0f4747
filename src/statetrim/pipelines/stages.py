"""The stages of a run; each makes its artifact unless an earlier run finished it."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..artifacts.plan import Plan
from ..artifacts.record import as_fields
from ..artifacts.scores import Scores
from ..artifacts.statistics import Statistics
from ..benchmarking.benchmark import benchmark
from ..benchmarking.options import BenchmarkOptions
from ..calibration.calibrate import calibrate
from ..calibration.options import CalibrateOptions
from ..defaults import HEAD_METHOD
from ..evaluation.evaluate import evaluate
from ..evaluation.options import EvaluateOptions
from ..evaluation.runner import OriginalResults
from ..judging.measured_card import with_measurements
from ..maths.units import MIB
from ..options import derive
from ..recovery.options import RecoverRunOptions
from ..recovery.recover import recover
from ..runtime.corpus import Corpus
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
"""Options that a rerun may change, after a stage ran out of memory or time."""
STATISTICS = "statistics.safetensors"
PLAN, PRUNED, REFITTED = "plan.json", "pruned", "refitted"
DECISION = "decision.json"  # if several shapes were compared


class StageRunner:
    """Runs the stages of `job` in `directory`; `ensure_*` skip what an earlier run finished.

    `methods` are the methods to calibrate for (None: those of the job), if several jobs share the
    statistics. For a job that is one of several, `step` is the step of the estimate to which its
    stages belong, except calibration, `shape` is added to the names of its stages, `evaluated`
    is the text to evaluate on (None: the job's slice for evaluation), and `original` are the
    original's results, which all of them compare with.
    """

    def __init__(
        self,
        job: Job,
        directory: Path,
        observer: Observer,
        methods: Sequence[str] | None = None,
        step: str | None = None,
        shape: str = "",
        evaluated: Corpus | None = None,
        original: OriginalResults | None = None,
    ) -> None:
        self.job, self.options = job, job.options
        self.directory, self.observer = directory, observer
        self.methods = job.calibrated_methods if methods is None else methods
        self.step, self.shape, self.original = step, shape, original
        self.evaluated = evaluated or job.slices.evaluation

    def run_all(self, record: dict[str, Any]) -> Path:
        """Run all stages and return the directory of the resulting checkpoint.

        `record` and the results are written to its trim.json, and the scores to its model card;
        statistics, scores, timings, the decision and the plans of compared shapes are linked or
        copied next to trim.json.
        """
        plan = self.ensure_plan()
        pruned = self.ensure_pruned(PRUNED, plan)
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
        compared_plans = [path.name for path in self.directory.glob("plan-*x*.json")]
        for name in (STATISTICS, "scores.json", "timings.json", DECISION, *compared_plans):
            if (self.directory / name).exists():
                _link_or_copy(self.directory / name, artifacts_dir / name)
        card = final.path / CARD
        verdict = ship_verdict(scores, scores.models[1], final)
        write_text(card, with_measurements(card.read_text(encoding="utf-8"), scores, verdict))
        findings = {"checks": checks, "warnings": list(verdict.warnings)}
        measured = {"measured_from": self.evaluated.start}
        write_json(artifacts_dir / RECORD, as_fields(record | findings | measured))
        return final.path

    def ensure_refitted(self, pruned: Checkpoint, name: str = REFITTED) -> Checkpoint:
        """The cut with output projections refitted by least squares; written to `name`.

        The sums of the refit are first collected in NAME-statistics.safetensors, or are those of
        the original if heads are removed.
        """
        job, out = self.job, self.directory / name
        path = self.directory / f"{name}-statistics.safetensors"
        if job.removes_heads:  # kept heads are unchanged, so the original's statistics hold
            path = self.directory / STATISTICS

        def collect() -> None:
            self._calibrate(path, "calibrating for the refit", pruned, original=job.model)

        def make() -> None:
            with self.observer.progress("refitting") as progress:
                refit(pruned, Statistics.load(path), out=out, progress=progress)

        if not job.removes_heads and not is_complete(out):
            self._run_stage("refit", "calibrate for the refit", path, collect)
        self._run_stage("refit", "refit", out, make)
        return open_checkpoint(out, job.model.family)

    def ensure_recovered(self, pruned: Checkpoint) -> Checkpoint:
        """The cut after LoRA training with distillation from the original; written to
        `recovered`."""
        job, options, out = self.job, self.options, self.directory / "recovered"

        def make() -> None:
            with self.observer.progress("recovering") as progress:
                recovery = RecoverRunOptions(
                    teacher=job.model,
                    text=job.slices.recovery,
                    tokens=job.recovery_tokens,
                    length=options.length,
                    batch_size=RECOVERY_BATCH_SIZE,
                    layerwise=options.layerwise or options.device_map is not None,
                    device=options.device,
                    dtype=options.dtype,
                    seed=options.seed,
                    out=out,
                    on_coverage=self.observer.announce,
                    progress=progress,
                )
                recover.run(pruned, recovery)

        self._run_stage("recover", "recover", out, make)
        return open_checkpoint(out, job.model.family)

    def ensure_timings(self, cut: Checkpoint) -> None:
        """Compare the speed of the cut and the original; written to timings.json."""
        path, model = self.directory / "timings.json", self.job.model

        def make() -> None:
            with self.observer.progress("timing") as progress:
                devices = self.options.placement
                timing = derive(
                    BenchmarkOptions,
                    devices,
                    baseline=model,
                    rounds=3,
                    out=path,
                    progress=progress,
                )
                benchmark.run([cut], timing)

        self._run_stage("benchmark", "benchmark", path, make)

    def ensure_statistics(self) -> Statistics | None:
        """The statistics of the original that the methods need; None if they need none."""
        path = self.directory / STATISTICS
        if not self.methods:
            return None

        def make() -> None:
            self._calibrate(path, "calibrating", self.job.model, methods=self.methods)

        self._run_stage("calibrate", "calibrate", path, make)
        return Statistics.load(path)

    def _calibrate(
        self,
        out: Path,
        label: str,
        model: Checkpoint,
        *,
        methods: Sequence[str] | None = None,
        original: Checkpoint | None = None,
    ) -> None:
        """Run `model` on the job's text and write the statistics for `methods` to `out`, or with
        `original` the sums for the refit of `model`, a cut."""
        with self.observer.progress(label) as progress:
            calibration = derive(
                CalibrateOptions,
                self.options,
                text=self.job.slices.calibration,
                original=original,
                tokens=self.job.tokens,
                methods=methods,
                layerwise=bool(self.options.layerwise),
                out=out,
                progress=progress,
            )
            calibrate.run(model, calibration)

    def ensure_plan(self, name: str = PLAN, method: str | None = None) -> Plan:
        """What to keep, by the job's methods, or by `method` on all axes, which needs no
        calibration; written to `name`."""
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

        step = (
            "evaluate" if method else "select"
        )  # `method` makes the control, a part of evaluation
        self._run_stage(step, f"select by {method or ' and '.join(job.methods)}", path, make)
        return Plan.load(path)

    def ensure_pruned(self, name: str, plan: Plan) -> Checkpoint:
        """The cut that `plan` describes; written to `name`."""
        out = self.directory / name

        def make() -> None:
            with self.observer.progress("pruning") as progress:
                by_layer = bool(self.job.after.widths)
                prune(self.job.model, plan, out, uneven=by_layer, progress=progress)

        stage = "prune" if self.shape else f"prune ({name})"
        self._run_stage("evaluate" if name == CONTROL_METHOD else "prune", stage, out, make)
        return open_checkpoint(out, self.job.model.family)

    def ensure_checks(self, plan: Plan, cut: Checkpoint) -> dict[str, Any]:
        """Compare the cut with the masked original; returns the differences, which are written to
        checks.json. Raises StatetrimError if they are larger than rounding."""
        path, model = self.directory / "checks.json", self.job.model
        placement = self.options.placement
        if placement.device_map is None and needs_streaming(model, 4, free_memory(placement)):
            placement = replace(placement, layerwise=True)  # needs both models in float32 at once

        def make() -> None:
            write_json(path, asdict(compare_cut(model, plan, cut, placement=placement)))

        self._run_stage("check", "check", path, make)
        return read_json(path, MIB)

    def ensure_control(self) -> list[Checkpoint]:
        """The control, a random cut to the same shape; empty if the job has none."""
        if not self.job.runs_control:
            return []
        plan = self.ensure_plan(f"plan-{CONTROL_METHOD}.json", CONTROL_METHOD)
        return [self.ensure_pruned(CONTROL_METHOD, plan)]

    def ensure_scores(self, models: list[Checkpoint], path: Path) -> None:
        """Evaluate the original and `models` on the job's tasks; written to `path`."""
        job, options = self.job, self.options

        def make() -> None:
            with self.observer.progress("evaluating") as progress:
                evaluation = derive(
                    EvaluateOptions,
                    options,
                    baseline=job.model,
                    text=self.evaluated if "text" in options.tasks else None,
                    layerwise=bool(options.layerwise),
                    state_dtype=options.state_dtype or "float32",
                    original=self.original,
                    out=path,
                    progress=progress,
                )
                evaluate.run(models, evaluation)

        self._run_stage("evaluate", "evaluate", path, make)

    def _run_stage(self, step: str, name: str, artifact: Path, make: Callable[[], None]) -> None:
        """Call `make` unless `artifact` is complete, and notify the observer."""
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
    """Make `target` a hard link to `source`, or a copy if the file system has no links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
