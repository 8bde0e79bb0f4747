"""The stages of a run: what each artifact is made from, and how."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..artifacts.decision import Decision
from ..artifacts.plan import Plan
from ..artifacts.record import as_fields
from ..artifacts.scores import Scores
from ..artifacts.statistics import Statistics
from ..benchmarking.benchmark import benchmark
from ..benchmarking.options import BenchmarkOptions
from ..calibration.calibrate import calibrate
from ..calibration.options import CalibrateOptions
from ..errors import StatetrimError
from ..evaluation.evaluate import evaluate
from ..evaluation.options import EvaluateOptions
from ..evaluation.runner import OriginalResults
from ..judging.decision_table import decision_rows, with_measurements
from ..maths.units import MIB
from ..options import OptionsFunction, derive
from ..progress import OnProgress
from ..recovery.options import RecoverRunOptions
from ..recovery.recover import recover
from ..runtime.corpus import Corpus
from ..runtime.states import StateStorage
from ..selection.options import SelectOptions
from ..selection.select import select_for_target
from ..serving.deployment import ship_verdict
from ..storage.atomic import atomic_write, remove
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.json_file import read_json, write_json, write_text
from ..storage.output import ARTIFACTS, CARD
from ..surgery.check import compare_cut
from ..surgery.prune import prune
from ..surgery.refit import refit
from ..tasks import read_text
from .job import RECOVERY_BATCH_SIZE, Job, needs_streaming
from .stage import Make, Observer, Stage

RECORD = "trim.json"
CHOICE_SEED = 3  # of recall sequences that compare shapes; predictions use smaller ones
STATISTICS = "statistics.safetensors"
RESULT = "result"  # what is published: the last checkpoint, with what was measured
DECISION = "decision.json"  # if several shapes were compared
SENSITIVITY = "sensitivity.json"  # if widths by layer were one of them


@dataclass
class StageRunner:
    """The stages of `job`, whose artifacts are in `directory`."""

    job: Job
    directory: Path
    observer: Observer
    # Of a job that is one of several:
    methods: Sequence[str] | None = None  # to calibrate for; None: those of the job
    step: str | None = None  # of `steps`, to which all stages except calibration belong
    shape: str = ""  # added to the names of the stages and of their files
    evaluated: Corpus | None = None  # None: the job's slice for evaluation
    original: OriginalResults | None = None  # which all of them compare with
    # Of the one that was chosen:
    decided_by: Sequence[Path] = ()  # artifacts to publish with the result
    decision: Decision | None = None  # by which it was chosen

    def run_all(self, record: dict[str, Any]) -> Path:
        """Run all stages and return the directory to publish: the last checkpoint, as links.
        `record` and the results are its trim.json, next to links of what was measured, and the
        scores are in its model card."""
        job, plan = self.job, self.plan()
        pruned = self.pruned(plan)
        checks = read_json(self.checks(plan, pruned).ensure(self.observer), MIB)
        result = self.refitted(pruned) if job.runs_refit else pruned
        result = self.recovered(result) if job.recovery_tokens else result
        final = open_checkpoint(result.ensure(self.observer), job.model.family)
        measured = [self.scores(result, "scores.json")]
        measured += [self.timings(result)] if job.runs_benchmark else []
        measured += [self.statistics()] if self.calibrated_methods else []
        files = [*[stage.ensure(self.observer) for stage in measured], *self.decided_by]
        scores = Scores.load(files[0])
        if not final.has_digest(scores.lineage["models"][1]):
            raise StatetrimError(f"{final.path} was changed after it was measured; remove it")
        compared = self.decision.load_scores(self.directory) if self.decision else {}
        chosen_by = compared[str(self.decision.chosen)] if self.decision else None
        verdict = ship_verdict(scores, scores.models[1], final, earlier=chosen_by)
        findings: dict[str, Any] = {"checks": checks, "warnings": list(verdict.warnings)}
        findings |= {"measured_from": job.slices.evaluation.start, "flag_dtype": job.flag_dtype}
        out, card = self.directory / RESULT, (final.path / CARD).read_text(encoding="utf-8")
        remove(out)
        with atomic_write(out) as scratch:  # artifacts of stages stay as they are
            shutil.copytree(final.path, scratch, copy_function=_link_or_copy)
            for path in files:
                _link_or_copy(path, scratch / ARTIFACTS / path.name)
            rows = decision_rows(self.decision, compared) if self.decision else []
            write_text(scratch / CARD, with_measurements(card, scores, verdict, rows))
            write_json(scratch / ARTIFACTS / RECORD, as_fields(record | findings))
        return out

    def refitted(self, pruned: Stage) -> Stage:
        """The cut with output projections refitted by least squares. The sums of the refit are
        first collected in NAME-statistics.safetensors."""
        out = self.directory / (f"fitted-{self.shape}" if self.shape else "refitted")
        if self.job.refits_from_original:
            statistics = self.statistics()
        else:
            options = self._calibration(original=self.job.model)
            file, title = f"{out.name}-statistics.safetensors", "calibrate for the refit"
            statistics = self._call("refit", title, file, calibrate, options, pruned)

        def make(progress: OnProgress) -> None:
            sums = Statistics.load(statistics.artifact)
            refit(self._open(pruned), sums, out=out, progress=progress)

        return self._stage("refit", "refit", out, make, None, pruned, statistics)

    def recovered(self, pruned: Stage) -> Stage:
        """The cut after LoRA training with distillation from the original."""
        job, options = self.job, self.job.options
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
            out=self.directory / "recovered",
        )
        return self._call("recover", "recover", "recovered", recover, recovery, pruned)

    def timings(self, cut: Stage) -> Stage:
        """The speed of the cut and the original; written to timings.json."""
        job = self.job
        options = derive(BenchmarkOptions, job.options.placement, baseline=job.model, rounds=3)
        return self._call("benchmark", "benchmark", "timings.json", benchmark, options, cut)

    @property
    def calibrated_methods(self) -> Sequence[str]:
        """The methods for which statistics of the original are collected."""
        return self.job.calibrated_methods if self.methods is None else self.methods

    def statistics(self) -> Stage:
        """The statistics of the original that the methods need."""
        options = self._calibration(self.calibrated_methods)
        return self._call("calibrate", "calibrate", STATISTICS, calibrate, options)

    def _calibration(
        self, methods: Sequence[str] | None = None, original: Checkpoint | None = None
    ) -> CalibrateOptions:
        """Calibration on the job's text: for `methods`, or for the refit of a cut of `original`."""
        return derive(
            CalibrateOptions,
            self.job.options,
            text=self.job.slices.calibration,
            original=original,
            tokens=self.job.tokens,
            methods=methods,
            layerwise=bool(self.job.options.layerwise),
        )

    def plan(self) -> Stage:
        """What to keep, by the job's methods."""
        job = self.job
        out = self.directory / (f"plan-{self.shape}.json" if self.shape else "plan.json")
        statistics = self.statistics() if self.calibrated_methods else None
        options = SelectOptions(job.options.method, seed=job.options.seed)

        def make(progress: OnProgress) -> None:
            sums = Statistics.load(statistics.artifact) if statistics else None
            selection = replace(options, statistics=sums)
            select_for_target(job.model, job.target, selection, progress).save(out)

        title = f"select by {' and '.join(job.methods)}"
        inputs, chosen = [statistics] if statistics else [], [options, str(job.target)]
        return self._stage("select", title, out, make, chosen, *inputs)

    def pruned(self, plan: Stage) -> Stage:
        """The cut that `plan` describes."""
        out = self.directory / (f"cut-{self.shape}" if self.shape else "pruned")
        by_layer = bool(self.job.after.widths)
        dtype = self.job.flag_dtype

        def make(progress: OnProgress) -> None:
            chosen = Plan.load(plan.artifact)
            prune(
                self.job.model, chosen, out, uneven=by_layer, state_dtype=dtype, progress=progress
            )

        return self._stage("prune", "prune", out, make, [by_layer, dtype], plan)

    def checks(self, plan: Stage, cut: Stage) -> Stage:
        """How far the cut is from the masked original; refuses more than rounding."""
        out, model = self.directory / "checks.json", self.job.model
        placement = self.job.options.placement

        def make(progress: OnProgress) -> None:
            fitting = placement
            if placement.device_map is None and needs_streaming(model, 4, placement):
                fitting = replace(placement, layerwise=True)  # both models in float32 at once
            chosen = Plan.load(plan.artifact)
            gaps = compare_cut(model, chosen, self._open(cut), placement=fitting)
            write_json(out, asdict(gaps))

        return self._stage("check", "check", out, make, placement, plan, cut)

    def scores(self, cut: Stage | None, name: str, storage: StateStorage | None = None) -> Stage:
        """The scores of the original and `cut` on the job's tasks, without a cut those of the
        original twice; written to `name`. States of all but the first model are stored as `storage`
        says, by default in the dtype of the options. To compare shapes, fewer samples are taken,
        which the evaluation of the result does not use, and no random cuts."""
        job, options = self.job, self.job.options
        text = self.evaluated or job.slices.evaluation
        stored = storage or StateStorage(job.state_dtype)
        evaluation = derive(
            EvaluateOptions,
            options,
            baseline=job.model,
            text=text if read_text(options.tasks) else None,
            layerwise=bool(options.layerwise),
            state_dtype=stored.dtype,
            state_piece=stored.piece,
            original=self.original,
        )
        if self.evaluated:
            evaluation = replace(
                evaluation, limit=job.shape_samples, control=False, recall_seed=CHOICE_SEED
            )
        return self._call("evaluate", "evaluate", name, evaluate, evaluation, cut)

    def _open(self, cut: Stage) -> Checkpoint:
        return open_checkpoint(cut.artifact, self.job.model.family)

    def _call(
        self,
        step: str,
        title: str,
        name: str,
        function: OptionsFunction[Any, ..., Any, Any],
        options: Any,
        cut: Stage | None = None,
    ) -> Stage:
        """A stage that calls `function` of `cut`, or of the original, which writes `name`."""
        out = self.directory / name

        def make(progress: OnProgress) -> None:
            model = self._open(cut) if cut else self.job.model
            function.run(model, replace(options, out=out, progress=progress))

        return self._stage(step, title, out, make, options, *([cut] if cut else []))

    def _stage(
        self, step: str, title: str, out: Path, make: Make, options: Any, *inputs: Stage
    ) -> Stage:
        """A stage of this job; only calibration is shared with the others, if there are several."""
        if step != "calibrate":
            step = self.step or step
            title = f"{title} ({self.shape})" if self.shape else title
        lineage = {"stage": options, "job": self.job.identity}
        return Stage(out, lineage, make, inputs, step, title)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    """Make `target` a hard link to `source`, or a copy if the file system has no links."""
    Path(target).unlink(missing_ok=True)
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
