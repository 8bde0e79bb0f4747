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
from ..selection.select import choose
from ..serving.deployment import ship_verdict
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.json_file import read_object, write_object, write_text
from ..storage.output import ARTIFACTS, CARD, complete
from ..surgery.check import check_cut
from ..surgery.prune import prune
from ..surgery.refit import refit
from .estimate import free_memory, needs_streaming
from .job import CONTROL, RECOVERED_BATCH, Job
from .observer import Watch

RECORD = "trim.json"
FREE = ("batch_size", "benchmark", "layerwise", "recover")
"""What a rerun may change, where a stage took more memory or time than there is."""
STATISTICS = "statistics.safetensors"
DECISION = "decision.json"  # where several shapes were compared


class Run:
    """The stages, in order; each makes its artifact unless it is there.

    `methods` are those to calibrate for, where jobs with other methods share the statistics;
    `step` is the step of the estimate that all stages but calibration are a part of, where the run
    is one of several, and `shape` tells the stages of such runs apart.
    """

    def __init__(
        self,
        job: Job,
        directory: Path,
        watch: Watch,
        methods: Sequence[str] | None = None,
        step: str | None = None,
        shape: str = "",
    ) -> None:
        self.job, self.options = job, job.options
        self.directory, self.watch = directory, watch
        self.methods = job.calibrated_methods if methods is None else methods
        self.step, self.shape = step, shape

    def finish(self, record: dict[str, Any]) -> Path:
        """Everything; the directory that is the result."""
        plan = self.plan()
        pruned = self.pruned("pruned", plan)
        checks = self.checks(plan, pruned)
        fitted = self.refitted(pruned) if self.job.refits else pruned
        small = self.recovered(fitted) if self.job.recovered_tokens else fitted
        scored = self.directory / "scores.json"
        if not complete(scored):
            between = [pruned] if small is not pruned else []
            self.scores([small, *between, *self.control()], scored)
        if self.job.times:
            self.timings(small)
        scores, home = Scores.load(scored), small.path / ARTIFACTS
        for name in (STATISTICS, "scores.json", "timings.json", DECISION):
            if (self.directory / name).exists():
                _link(self.directory / name, home / name)
        card = small.path / CARD
        judged = ship_verdict(scores, scores.models[1], small)
        write_text(card, with_measurements(card.read_text(encoding="utf-8"), scores, judged))
        found = {"checks": checks, "warnings": list(judged.warnings)}
        write_object(home / RECORD, record | found | {"measured_from": self.job.measured_from})
        return small.path

    @property
    def _where(self) -> dict[str, Any]:
        """Where models run, for functions that take it by name."""
        return {
            field.name: getattr(self.options.placement, field.name) for field in fields(Placement)
        }

    def refitted(self, pruned: Checkpoint, name: str = "refitted") -> Checkpoint:
        """The output projections refitted to the remaining read-out."""
        job, out = self.job, self.directory / name
        path = self.directory / f"{name}-statistics.safetensors"
        if job.cuts_heads:  # the heads that are left read out what they did before
            path = self.directory / STATISTICS

        def collect() -> None:
            self._calibrate("calibrating for the refit", pruned, path, original=job.model)

        def make() -> None:
            with self.watch.progress("refitting") as progress:
                refit(pruned, Statistics.load(path), out=out, progress=progress)

        if not job.cuts_heads and not complete(out):
            self._stage("refit", "calibrate for the refit", path, collect)
        self._stage("refit", "refit", out, make)
        return open_checkpoint(out, job.model.family)

    def recovered(self, pruned: Checkpoint) -> Checkpoint:
        job, options, out = self.job, self.options, self.directory / "recovered"

        def make() -> None:
            with self.watch.progress("recovering") as progress:
                recover(
                    pruned,
                    teacher=job.model,
                    text=options.text,
                    tokens=job.recovered_tokens,
                    skip=job.trained_from,
                    length=options.length,
                    batch_size=RECOVERED_BATCH,
                    layerwise=options.placement.layerwise or options.device_map is not None,
                    device=options.device,
                    dtype=options.dtype,
                    seed=options.seed,
                    out=out,
                    announce=self.watch.announce,
                    progress=progress,
                )

        self._stage("recover", "recover", out, make)
        return open_checkpoint(out, job.model.family)

    def timings(self, small: Checkpoint) -> None:
        path = self.directory / "timings.json"

        def make() -> None:
            with self.watch.progress("timing") as progress:
                where = {name: each for name, each in self._where.items() if name != "layerwise"}
                benchmark(
                    [small], baseline=self.job.model, rounds=3, out=path, progress=progress, **where
                )

        self._stage("benchmark", "benchmark", path, make)

    def statistics(self) -> Statistics | None:
        job, path = self.job, self.directory / STATISTICS
        if not self.methods:
            return None

        def make() -> None:
            self._calibrate("calibrating", job.model, path, methods=self.methods)

        self._stage("calibrate", "calibrate", path, make)
        return Statistics.load(path)

    def _calibrate(self, label: str, model: Checkpoint, path: Path, **needed: Any) -> None:
        with self.watch.progress(label) as progress:
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
                **needed,
            )

    def plan(self, name: str = "plan.json", method: str | None = None) -> Plan:
        job, path = self.job, self.directory / name
        statistics = None if method else self.statistics()

        def make() -> None:
            with self.watch.progress("selecting") as progress:
                choose(
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
        self._stage(step, f"select by {method or ' and '.join(job.methods)}", path, make)
        return Plan.load(path)

    def pruned(self, name: str, plan: Plan) -> Checkpoint:
        out = self.directory / name

        def make() -> None:
            with self.watch.progress("pruning") as progress:
                uneven = bool(self.job.after.widths)
                prune(self.job.model, plan, out, uneven=uneven, progress=progress)

        stage = "prune" if self.shape else f"prune ({name})"
        self._stage("evaluate" if name == CONTROL else "prune", stage, out, make)
        return open_checkpoint(out, self.job.model.family)

    def checks(self, plan: Plan, small: Checkpoint) -> dict[str, Any]:
        path, model = self.directory / "checks.json", self.job.model
        place = self.options.placement
        if place.device_map is None and needs_streaming(model, 4, free_memory(place)):
            place = replace(place, layerwise=True)  # both models at once, in float32

        def make() -> None:
            write_object(path, asdict(check_cut(model, plan, small, placement=place)))

        self._stage("check", "check", path, make)
        return read_object(path, MIB)

    def control(self) -> list[Checkpoint]:
        """A random cut to the same shape: what a method must beat."""
        if not self.job.controls:
            return []
        return [self.pruned(CONTROL, self.plan(f"plan-{CONTROL}.json", CONTROL))]

    def scores(self, models: list[Checkpoint], path: Path) -> None:
        job, options = self.job, self.options

        def make() -> None:
            with self.watch.progress("evaluating") as progress:
                evaluate(
                    models,
                    baseline=job.model,
                    tasks=options.tasks,
                    data=options.data,
                    text=options.text if "text" in options.tasks else None,
                    skip=job.measured_from,
                    limit=options.limit,
                    batch_size=options.batch_size,
                    storage=options.storage,
                    **self._where,
                    out=path,
                    progress=progress,
                )

        self._stage("evaluate", "evaluate", path, make)

    def _stage(self, step: str, name: str, artifact: Path, make: Callable[[], None]) -> None:
        shared = step == "calibrate"
        self.watch.enters(step if shared else self.step or step)
        if self.shape and not shared:
            name = f"{name} ({self.shape})"
        if complete(artifact):
            self.watch.kept(name)
        else:
            self.watch.begins(name)
            make()


def _link(source: Path, target: Path) -> None:
    """The same file under a second name, or a copy where the disk knows no links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
