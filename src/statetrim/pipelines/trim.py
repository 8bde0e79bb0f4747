"""The one command: calibrate, select, prune, check, recover, evaluate, benchmark, report.

Stages meet through their artifacts in `OUT.partial`. A finished artifact has its final name, so a
rerun of the same job goes on after it, and another job's directory is refused. The result takes
its name last, with the artifacts below `OUT/statetrim`.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

from ..artifacts.model_card import with_measurements
from ..artifacts.plan import Plan
from ..artifacts.scores import Scores
from ..artifacts.statistics import Statistics
from ..benchmarking.benchmark import benchmark
from ..calibration.calibrate import calibrate
from ..evaluation.evaluate import evaluate
from ..maths.units import MIB
from ..recovery.recover import recover
from ..reporting.report import report
from ..runtime.loading import load_tokenizer
from ..selection.select import choose
from ..serving.deployment import ship_verdict
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.json_file import read_object, write_object, write_text
from ..storage.models import ModelLike, opened
from ..storage.output import ARTIFACTS, CARD, already_done, sync_directory, workplace
from ..storage.text import sequences
from ..surgery.check import check_cut
from ..surgery.prune import prune
from ..surgery.refit import refit
from .estimate import free_memory, needs_streaming
from .job import CONTROL, RECOVERED_BATCH, SEQUENCE, Job, plain
from .observer import Watch
from .options import TrimFields, TrimOptions, changed

RECORD = "trim.json"
_QUICKLY_COUNTED = 2**23  # tokens; more would take longer than it is worth


def trim(
    model: ModelLike,
    options: TrimOptions | None = None,
    *,
    out: str | Path,
    watch: Watch | None = None,
    **changes: Unpack[TrimFields],
) -> Checkpoint:
    """Cut a model, check and measure the result, and open it.

    `options` may be given whole, one by one (`keep=0.5`), or both: those given by name then count.
    A rerun after a crash goes on where it was.
    """
    options = changed("trim", options, changes)
    return run(Job.of(opened(model), options), out, watch or Watch())


def finished(job: Job, out: str | Path) -> bool:
    """Whether `out` is this job's result; anything else that is there is refused."""
    return already_done(Path(out), RECORD, job.record)


def run(job: Job, out: str | Path, watch: Watch) -> Checkpoint:
    """The chain, for a job whose state is settled."""
    out, record = Path(out), job.record
    partial = out.with_name(out.name + ".partial")
    if not finished(job, out):
        job.check()
        _check_text(job)
        with workplace(partial, RECORD, record):
            stages = Run(job.decided(partial), partial, watch)
            stages.finish(out, record | {"recipe": plain(job.options)})
    if partial.exists():
        with workplace(partial, RECORD, record):  # ours, and nobody's at work in it
            for path in partial.iterdir():
                if path.name != ARTIFACTS:  # the record goes last: a kill leaves it ours
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.rmtree(partial)
    _report(job.model, out, watch)
    return open_checkpoint(out, job.model.family)


class Run:
    """The stages, in order; each makes its artifact unless it is there.

    `methods` are those to calibrate for, where jobs with other methods share the statistics.
    """

    def __init__(
        self, job: Job, directory: Path, watch: Watch, methods: Sequence[str] | None = None
    ) -> None:
        self.job, self.options = job, job.options
        self.directory, self.watch = directory, watch
        self.methods = job.calibrated_methods if methods is None else methods

    def finish(self, out: Path, record: dict[str, Any]) -> None:
        plan = self.plan()
        pruned = self.pruned("pruned", plan)
        checks = self.checks(plan, pruned)
        fitted = self.refitted(pruned) if self.job.refits else pruned
        small = self.recovered(fitted) if self.job.recovered_tokens else fitted
        scored = self.directory / "scores.json"
        if not scored.exists():
            between = [pruned] if small is not pruned else []
            self.scores([small, *between, *self.control()], scored)
        if self.job.times:
            self.timings(small)
        scores, home = Scores.load(scored), small.path / ARTIFACTS
        for name in ("statistics.safetensors", "scores.json", "timings.json"):
            if (self.directory / name).exists():
                _link(self.directory / name, home / name)
        card = small.path / CARD
        judged = ship_verdict(scores, scores.models[1], small)
        write_text(card, with_measurements(card.read_text(encoding="utf-8"), scores, judged))
        warned = list(judged.warnings)
        write_object(home / RECORD, {**record, "checks": checks, "warnings": warned})
        small.path.rename(out)
        sync_directory(out.parent)

    def refitted(self, pruned: Checkpoint, name: str = "refitted") -> Checkpoint:
        """The output projections fitted anew to the read-out that is left."""
        job, out = self.job, self.directory / name
        path = self.directory / f"{name}-statistics.safetensors"

        def collect() -> None:
            self._calibrate("calibrating for the refit", pruned, path, original=job.model)

        def make() -> None:
            self._stage("calibrate for the refit", path, collect)
            refit(pruned, Statistics.load(path), out=out)

        self._stage("refit", out, make)
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
                    layerwise=bool(options.layerwise),
                    seed=options.seed,
                    out=out,
                    resume=True,
                    announce=self.watch.announce,
                    progress=progress,
                )

        self._stage("recover", out, make)
        return open_checkpoint(out, job.model.family)

    def timings(self, small: Checkpoint) -> None:
        path = self.directory / "timings.json"

        def make() -> None:
            benchmark([small], baseline=self.job.model, rounds=3, out=path)

        self._stage("benchmark", path, make)

    def statistics(self) -> Statistics | None:
        job, path = self.job, self.directory / "statistics.safetensors"
        if not self.methods:
            return None

        def make() -> None:
            self._calibrate("calibrating", job.model, path, methods=self.methods)

        self._stage("calibrate", path, make)
        return Statistics.load(path)

    def _calibrate(self, label: str, model: Checkpoint, path: Path, **needed: Any) -> None:
        with self.watch.progress(label) as progress:
            calibrate(
                model,
                self.options.text,
                tokens=self.job.tokens,
                length=self.options.length,
                batch_size=self.options.batch_size,
                layerwise=bool(self.options.layerwise),
                out=path,
                resume=True,
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
                    seed=self.options.seed,
                    statistics=statistics,
                    progress=progress,
                ).save(path)

        self._stage(f"select by {method or ' and '.join(job.methods)}", path, make)
        return Plan.load(path)

    def pruned(self, name: str, plan: Plan) -> Checkpoint:
        out = self.directory / name

        def make() -> None:
            with self.watch.progress("pruning") as progress:
                prune(self.job.model, plan, out, progress=progress)

        self._stage(f"prune ({name})", out, make)
        return open_checkpoint(out, self.job.model.family)

    def checks(self, plan: Plan, small: Checkpoint) -> dict[str, Any]:
        path, model = self.directory / "checks.json", self.job.model
        # Both models at once, in float32.
        streamed = self.options.layerwise or needs_streaming(model, 4, free_memory())

        def make() -> None:
            write_object(path, asdict(check_cut(model, plan, small, layerwise=bool(streamed))))

        self._stage("check", path, make)
        return read_object(path, MIB)

    def control(self) -> list[Checkpoint]:
        """A random cut to the same shape: what a method must beat."""
        if not self.options.control or self.options.method == CONTROL:
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
                    layerwise=bool(options.layerwise),
                    out=path,
                    resume=True,
                    progress=progress,
                )

        self._stage("evaluate", path, make)

    def _stage(self, name: str, artifact: Path, make: Callable[[], None]) -> None:
        if artifact.exists():
            self.watch.kept(name)
        else:
            self.watch.begins(name)
            make()


def _check_text(job: Job) -> None:
    """A local text that is too short is refused now, not after an hour of calibration."""
    text, tokens = job.options.text, job.read_tokens
    if Path(text).exists() and SEQUENCE <= tokens <= _QUICKLY_COUNTED:
        sequences(text, load_tokenizer(job.model), tokens=tokens, length=SEQUENCE)


def _report(model: Checkpoint, out: Path, watch: Watch) -> None:
    """Last, because it names the result by its place; a killed run's rerun makes up for it."""
    home = out / ARTIFACTS
    if (home / "report").exists():
        return
    watch.begins("report")
    artifacts = [home / name for name in ("scores.json", "timings.json")]
    beside = home / "report.partial"
    shutil.rmtree(beside, ignore_errors=True)
    small = open_checkpoint(out, model.family)
    report([model, small, *filter(Path.exists, artifacts)], beside)
    beside.rename(home / "report")


def _link(source: Path, target: Path) -> None:
    """The same file under a second name, or a copy where the disk knows no links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
