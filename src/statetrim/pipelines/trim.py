"""The one command: calibrate, select, prune, check, recover, evaluate, benchmark, report.

Stages meet through their artifacts in `OUT.partial`. A finished artifact has its final name, so a
rerun of the same job resumes after it, and another job's directory is refused. The result takes
its name last, with the artifacts below `OUT/statetrim`.
"""

from pathlib import Path
from typing import Unpack

from ..progress import ShowProgress
from ..reporting.report import report
from ..runtime.loading import load_tokenizer
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.models import ModelLike, opened
from ..storage.output import ARTIFACTS, already_done, complete, output
from ..storage.space import check_writable
from ..storage.text import sequences
from .job import CONTROL, SEQUENCE, Job, recipe
from .observer import Reported, Watch
from .options import TrimFields, TrimOptions, changed
from .shape_choice import settled
from .stages import DECISION, FREE, RECORD, Run

OURS = (
    "layerwise.json", "statistics.*", "plan*.json*", "checks.json", "scores*.json*", "timings.*",
    "pruned*", "refitted*", "recovered*", f"{CONTROL}*", "cut-*", "fitted-*", "prediction.json",
    DECISION,
)  # fmt: skip
"""What the stages leave in `OUT.partial`."""
_QUICKLY_COUNTED = 2**23  # tokens; more would take longer than it is worth


def trim(
    model: ModelLike,
    options: TrimOptions | None = None,
    *,
    out: str | Path,
    watch: Watch | None = None,
    progress: ShowProgress = True,
    **changes: Unpack[TrimFields],
) -> Checkpoint:
    """Cut a model, check and measure the result, and open it.

    Give `options` as an object, by name (`keep=0.5`), or both; names take precedence. The same call
    resumes after an interruption. A `watch` is notified of each stage, and replaces `progress`.
    """
    options = changed("trim", options, changes)
    return run(Job.of(opened(model), options), out, watch or Reported(progress))


def finished(job: Job, out: str | Path) -> bool:
    """Whether `out` is this job's result; anything else that is there is refused."""
    return already_done(Path(out), RECORD, job.record)


def run(job: Job, out: str | Path, watch: Watch) -> Checkpoint:
    """The chain, for a job whose state is settled."""
    out, record = Path(out), job.record
    if not finished(job, out):
        job.check()
        check_writable(out)
        _check_text(job)
    with output(out, RECORD, record, ours=OURS, free=FREE) as work:
        if not work.done:
            made = recipe(job.model, job.options)
            job = job.decided(work.path)
            if job.candidates:
                job = settled(job, work.path, watch)
            work.publish(Run(job, work.path, watch).finish(record | made))
    _report(job.model, out, watch)
    return open_checkpoint(out, job.model.family)


def _check_text(job: Job) -> None:
    """A local text that is too short is refused now, not after an hour of calibration."""
    text, tokens = job.options.text, job.read_tokens
    if Path(text).exists() and SEQUENCE <= tokens <= _QUICKLY_COUNTED:
        sequences(text, load_tokenizer(job.model), tokens=tokens, length=SEQUENCE)


def _report(model: Checkpoint, out: Path, watch: Watch) -> None:
    """Last, because it names the result by its place; a killed run's rerun makes up for it."""
    home = out / ARTIFACTS
    if complete(home / "report"):
        return
    watch.enters("report")
    watch.begins("report")
    artifacts = [home / name for name in ("scores.json", "timings.json")]
    small = open_checkpoint(out, model.family)
    report([model, small, *filter(Path.exists, artifacts)], home / "report")
