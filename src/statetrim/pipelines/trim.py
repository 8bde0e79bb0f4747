"""All steps in one command: calibrate, select, prune, check, recover, evaluate, benchmark, report.

Stages exchange artifacts in `OUT.partial`. A rerun of the same job uses a finished artifact again
if it was made from the same (`stage.py`); another job's directory is refused. At the end the result
is renamed to `OUT`, with the artifacts in `OUT/statetrim`.
"""

from pathlib import Path

from ..errors import StatetrimError
from ..evaluation.harness import load_tasks
from ..evaluation.samples import EVAL_LENGTH
from ..options import takes_options
from ..reporting.report import report
from ..storage.checkpoint import Checkpoint, open_checkpoint
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import (
    ARTIFACTS,
    already_done,
    check_absent,
    finished,
    open_output,
    partial_path,
    remove_empty,
)
from ..storage.space import check_writable
from .job import LAYERWISE, Job, recipe_record
from .options import TrimRunOptions
from .shape_choice import choose_shape
from .stage import LEDGER, Observer
from .stages import DECISION, RECORD, RESULT, SENSITIVITY, StageRunner

STAGE_FILES = (
    RESULT, "statistics.*", "plan*.json*", "checks.json", "scores*.json*",
    "timings.*", "pruned*", "refitted*", "recovered*", "cut-*", "fitted-*",
    "prediction.json", f"{SENSITIVITY}*", DECISION,
)  # fmt: skip
"""Files of the stages in `OUT.partial`."""
CHANGEABLE_OPTIONS = ("batch_size", "benchmark", "layerwise", "recover", "files", "state_dtype")
"""Fields of the record that a rerun may change, after a stage ran out of memory or time, or to mend
a method; what depends on them is made again."""
_MAX_COUNTED_TOKENS = 2**23  # counting more takes too long for a check


@takes_options(TrimRunOptions)
def trim(model: ModelLike, options: TrimRunOptions) -> Checkpoint:
    """Prune a model, check and measure the result, and open it.

    The same call resumes after an interruption. A `watch` is notified of each stage, and replaces
    `progress`.
    """
    job = Job.from_options(as_checkpoint(model), options)
    return run(job, options.out, options.watch or Observer(options.progress))


def is_finished(job: Job, out: str | Path) -> bool:
    """Whether `out` is this job's result; False if nothing is there. Raises StatetrimError if it is
    anything else, or if the model is not downloaded and `out` exists: the job's record, which has
    the digest of all weights, cannot be compared then."""
    out = Path(out)
    if not job.model.downloaded or not out.exists():
        check_absent(out)
        return False
    return already_done(out, RECORD, job.record)


def run(job: Job, out: str | Path, observer: Observer) -> Checkpoint:
    """Run all stages of `job` and open the result at `out`; only the report if it is complete."""
    out, record = Path(out), job.record
    if not is_finished(job, out):
        job.check()
        check_writable(out)
        check_text(job)
        load_tasks(job.options.tasks, job.options.data, job.corpus.tokenizer)
    with open_output(
        out,
        RECORD,
        record,
        temporary_patterns=STAGE_FILES,
        may_change=CHANGEABLE_OPTIONS,
        notes=(LEDGER, LAYERWISE),
    ) as output_dir:
        if not output_dir.done:
            lineage = recipe_record(job.model, job.options)
            job = job.with_fixed_layerwise(output_dir.path)
            runner = StageRunner(job, output_dir.path, observer)
            if job.candidates:
                runner = choose_shape(job, output_dir.path, observer)
            output_dir.publish(runner.run_all(record | lineage))
    result, report_dir = open_checkpoint(out, job.model.family), out / ARTIFACTS / "report"
    if finished(report_dir):
        remove_empty(partial_path(report_dir))  # of a process that was killed at its very end
    else:  # it contains final paths
        observer.on_step("report")
        observer.on_start("report")
        report(result, out=report_dir, baseline=job.model)
    return result


def check_text(job: Job) -> None:
    """Raise StatetrimError if the text cannot be read or is too short, before anything is written.
    At most 2^23 tokens of a local text are counted, and one sequence of a dataset on the hub."""
    is_local = Path(job.options.text).exists()
    counted = min(job.text_end, _MAX_COUNTED_TOKENS if is_local else EVAL_LENGTH)
    available = job.corpus.count(counted) if counted else 0
    if available == counted:
        return
    fewer = job.tokens - (job.text_end - available)
    hint = f"take --tokens {fewer}" if fewer >= job.options.length else "give more text"
    raise StatetrimError(
        f"{job.options.text} gives {available} tokens, fewer than the {job.text_end} asked for; "
        f"{hint}"
    )
