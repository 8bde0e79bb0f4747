"""The stages of a run; each makes its artifact unless an earlier run finished it."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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
from ..evaluation.original import OriginalResults
from ..judging.measured_card import with_measurements
from ..maths.units import MIB
from ..options import derive
from ..progress import OnProgress
from ..recovery.options import RecoverRunOptions
from ..recovery.recover import recover
from ..runtime.corpus import Corpus
from ..runtime.states import StateStorage
from ..selection.options import SelectOptions
from ..selection.select import select_for_target
from ..serving.deployment import ship_verdict
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.json_file import read_json, write_json, write_text
from ..storage.output import ARTIFACTS, CARD, is_complete, remove_empty_partial
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
SENSITIVITY = "sensitivity.json"  # if widths by layer were one of them


Make = Callable[[OnProgress], None]
"""Makes the artifact of a stage, and reports its progress."""


@dataclass
class StageRunner:
    """Runs the stages of `job` in `directory`; `ensure_*` skip what an earlier run finished."""

    job: Job
    directory: Path
    observer: Observer
    # Of a job that is one of several:
    methods: Sequence[str] | None = None  # to calibrate for; None: those of the job
    step: str | None = None  # of the estimate, to which all stages except calibration belong
    shape: str = ""  # added to the names of the stages
    evaluated: Corpus | None = None  # None: the job's slice for evaluation
    original: OriginalResults | None = None  # which all of them compare with

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
        remove_empty_partial(scores_path)
        if not is_complete(scores_path):
            intermediate = [pruned] if final is not pruned else []
            self.ensure_scores([final, *intermediate, *self.ensure_control()], scores_path)
        if self.job.runs_benchmark:
            self.ensure_timings(final)
        scores, artifacts_dir = Scores.load(scores_path), final.path / ARTIFACTS
        compared_plans = [path.name for path in self.directory.glob("plan-*x*.json")]
        others = ("scores.json", "timings.json", SENSITIVITY, DECISION, *compared_plans)
        for name in (STATISTICS, *others):
            if (self.directory / name).exists():
                _link_or_copy(self.directory / name, artifacts_dir / name)
        card = final.path / CARD
        verdict = ship_verdict(scores, scores.models[1], final)
        write_text(card, with_measurements(card.read_text(encoding="utf-8"), scores, verdict))
        findings = {"checks": checks, "warnings": list(verdict.warnings)}
        measured = {"measured_from": self.job.slices.evaluation.start}
        write_json(artifacts_dir / RECORD, as_fields(record | findings | measured))
        return final.path

    def ensure_refitted(self, pruned: Checkpoint, name: str = REFITTED) -> Checkpoint:
        """The cut with output projections refitted by least squares; written to `name`. The sums of
        the refit are first collected in NAME-statistics.safetensors."""
        job, out = self.job, self.directory / name
        path = self.directory / f"{name}-statistics.safetensors"
        if job.removes_heads:  # kept heads are unchanged, so the original's statistics hold
            path = self.directory / STATISTICS

        def collect(progress: OnProgress) -> None:
            self._calibrate(pruned, path, progress, original=job.model)

        def make(progress: OnProgress) -> None:
            refit(pruned, Statistics.load(path), out=out, progress=progress)

        remove_empty_partial(out)
        if not job.removes_heads and not is_complete(out):
            stage, bar = "calibrate for the refit", "calibrating for the refit"
            self._run_stage("refit", stage, path, bar, collect)
        return self._ensure_checkpoint("refit", "refit", out, "refitting", make)

    def ensure_recovered(self, pruned: Checkpoint) -> Checkpoint:
        """The cut after LoRA training with distillation from the original; written to
        `recovered`."""
        job, options, out = self.job, self.job.options, self.directory / "recovered"

        def make(progress: OnProgress) -> None:
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

        return self._ensure_checkpoint("recover", "recover", out, "recovering", make)

    def ensure_timings(self, cut: Checkpoint) -> None:
        """Compare the speed of the cut and the original; written to timings.json."""
        path, model = self.directory / "timings.json", self.job.model
        placement = self.job.options.placement

        def make(progress: OnProgress) -> None:
            timing = derive(
                BenchmarkOptions, placement, baseline=model, rounds=3, out=path, progress=progress
            )
            benchmark.run([cut], timing)

        self._run_stage("benchmark", "benchmark", path, "timing", make)

    def ensure_statistics(self) -> Statistics | None:
        """The statistics of the original that the methods need; None if they need none."""
        path = self.directory / STATISTICS
        methods = self.job.calibrated_methods if self.methods is None else self.methods
        if not methods:
            return None

        def make(progress: OnProgress) -> None:
            self._calibrate(self.job.model, path, progress, methods=methods)

        self._run_stage("calibrate", "calibrate", path, "calibrating", make)
        return Statistics.load(path)

    def _calibrate(
        self,
        model: Checkpoint,
        out: Path,
        progress: OnProgress,
        *,
        methods: Sequence[str] | None = None,
        original: Checkpoint | None = None,
    ) -> None:
        """Run `model` on the job's text and write the statistics for `methods` to `out`, or with
        `original` the sums for the refit of `model`, a cut."""
        calibration = derive(
            CalibrateOptions,
            self.job.options,
            text=self.job.slices.calibration,
            original=original,
            tokens=self.job.tokens,
            methods=methods,
            layerwise=bool(self.job.options.layerwise),
            out=out,
            progress=progress,
        )
        calibrate.run(model, calibration)

    def ensure_plan(self, name: str = PLAN, method: str | None = None) -> Plan:
        """What to keep, by the job's methods, or by `method` on all axes, which needs no
        calibration; written to `name`."""
        job, options, path = self.job, self.job.options, self.directory / name
        statistics = None if method else self.ensure_statistics()

        selection = SelectOptions(
            method=method or options.method,
            value_method=method or options.value_method,
            head_method=method or HEAD_METHOD,
            seed=options.seed,
            statistics=statistics,
        )

        def make(progress: OnProgress) -> None:
            select_for_target(job.model, job.target, selection, progress).save(path)

        step = "evaluate" if method else "select"  # the control is a part of evaluation
        stage = f"select by {method or ' and '.join(job.methods)}"
        self._run_stage(step, stage, path, "selecting", make)
        return Plan.load(path)

    def ensure_pruned(self, name: str, plan: Plan) -> Checkpoint:
        """The cut that `plan` describes; written to `name`."""
        out, by_layer = self.directory / name, bool(self.job.after.widths)

        def make(progress: OnProgress) -> None:
            prune(self.job.model, plan, out, uneven=by_layer, progress=progress)

        step = "evaluate" if name == CONTROL_METHOD else "prune"
        stage = "prune" if self.shape else f"prune ({name})"
        return self._ensure_checkpoint(step, stage, out, "pruning", make)

    def ensure_checks(self, plan: Plan, cut: Checkpoint) -> dict[str, Any]:
        """Compare the cut with the masked original; returns the differences, which are written to
        checks.json. Raises StatetrimError if they are larger than rounding."""
        path, model = self.directory / "checks.json", self.job.model
        placement = self.job.options.placement
        if placement.device_map is None and needs_streaming(model, 4, free_memory(placement)):
            placement = replace(placement, layerwise=True)  # needs both models in float32 at once

        def make(progress: OnProgress) -> None:
            write_json(path, asdict(compare_cut(model, plan, cut, placement=placement)))

        self._run_stage("check", "check", path, "checking", make)
        return read_json(path, MIB)

    def ensure_control(self) -> list[Checkpoint]:
        """The control, a random cut to the same shape; empty if the job has none."""
        if not self.job.runs_control:
            return []
        plan = self.ensure_plan(f"plan-{CONTROL_METHOD}.json", CONTROL_METHOD)
        return [self.ensure_pruned(CONTROL_METHOD, plan)]

    def ensure_scores(
        self, models: list[Checkpoint], path: Path, storage: StateStorage | None = None
    ) -> None:
        """Evaluate the original and `models` on the job's tasks; written to `path`. The states of
        `models` are stored as `storage` says, by default in the dtype of the options."""
        job, options = self.job, self.job.options
        text = self.evaluated or job.slices.evaluation
        stored = storage or StateStorage(options.state_dtype or "float32")

        def make(progress: OnProgress) -> None:
            evaluation = derive(
                EvaluateOptions,
                options,
                baseline=job.model,
                text=text if "text" in options.tasks else None,
                layerwise=bool(options.layerwise),
                state_dtype=stored.dtype,
                state_piece=stored.piece,
                original=self.original,
                out=path,
                progress=progress,
            )
            evaluate.run(models, evaluation)

        self._run_stage("evaluate", "evaluate", path, "evaluating", make)

    def _ensure_checkpoint(
        self, step: str, name: str, out: Path, bar: str, make: Make
    ) -> Checkpoint:
        self._run_stage(step, name, out, bar, make)
        return open_checkpoint(out, self.job.model.family)

    def _run_stage(self, step: str, name: str, artifact: Path, bar: str, make: Make) -> None:
        """`run_stage`; only calibration is shared with the other jobs, if there are several."""
        if step != "calibrate":
            step = self.step or step
            name = f"{name} ({self.shape})" if self.shape else name
        run_stage(self.observer, step, name, artifact, bar, make)


def run_stage(
    observer: Observer, step: str, name: str, artifact: Path, bar: str, make: Make
) -> None:
    """Notify the observer, and call `make`, with its progress shown as `bar`, unless `artifact` is
    complete."""
    observer.on_step(step)
    remove_empty_partial(artifact)
    if is_complete(artifact):
        observer.on_cached(name)
        return
    observer.on_start(name)
    with observer.progress(bar) as progress:
        make(progress)


def _link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy if the file system has no links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
