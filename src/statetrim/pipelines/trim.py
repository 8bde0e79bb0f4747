"""The one command: calibrate, select, prune, check, recover, evaluate, benchmark, report.

Stages meet through their artifacts in `OUT.partial`. A finished artifact has its final name, so a
rerun of the same job resumes after it, and another job's directory is refused. The result takes
its name last, with the artifacts below `OUT/statetrim`.
"""

import shlex
from pathlib import Path
from typing import Any, Unpack

from ..artifacts.origin import read_seen_texts
from ..errors import StatetrimError
from ..progress import ShowProgress
from ..reporting.report import report
from ..runtime.loading import load_tokenizer
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.json_file import read_object
from ..storage.models import ModelLike, opened
from ..storage.output import ARTIFACTS, MOST_RECORD_BYTES, already_done, complete, output
from ..storage.space import check_writable
from ..storage.text import sequences
from .job import CONTROL, SEQUENCE, Job, is_comparable, recipe
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
MEASURES = ("tasks", "data", "limit")
"""The options that change nothing but what is measured."""
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
    if not is_comparable(job.model, Path(out)):
        return False
    _refuse_measuring_again(job, Path(out))
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


def _refuse_measuring_again(job: Job, out: Path) -> None:
    """Say how, if `out` is this job's result except for `MEASURES`. Recovery and the choice of a
    shape read the text where `limit` says, so that the same run would not give the same cut."""
    path = out / ARTIFACTS / RECORD
    if not path.is_file():
        return
    stored = read_object(path, MOST_RECORD_BYTES)
    differing = [name for name, value in job.record.items() if stored.get(name) != value]
    if differing and {*differing} <= {*MEASURES}:
        raise StatetrimError(
            f"{out} is complete, and was measured with another {' and '.join(differing)}; to "
            f"measure it again, run: {shlex.join(_evaluating(job, out))} and then: "
            f"{shlex.join(_reporting(job, out))}"
        )


def _evaluating(job: Job, out: Path) -> list[str]:
    options = job.options
    given: dict[str, Any] = {"--baseline": job.model.path, "--tasks": ",".join(options.tasks)}
    if "text" in options.tasks:
        ends = [one.end for one in read_seen_texts(open_checkpoint(out, job.model.family))]
        given |= {"--text": options.text, "--skip": max(ends, default=0)}
    given |= {"--data": options.data, "--state-dtype": options.state_dtype}
    given |= {"--limit": options.limit, "-o": _new_scores(out)}
    words = [[name, str(value)] for name, value in given.items() if value is not None]
    return ["statetrim", "evaluate", str(out), *(word for pair in words for word in pair)]


def _reporting(job: Job, out: Path) -> list[str]:
    page = out.with_name(f"{out.name}-report")
    words = (job.model.path, out, _new_scores(out), "-o", page)
    return ["statetrim", "report", *map(str, words)]


def _new_scores(out: Path) -> Path:
    return out.with_name(f"{out.name}-scores.json")
