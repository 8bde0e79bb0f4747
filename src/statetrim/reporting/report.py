"""Artifacts -> one page to forward: report.html, and the same in Markdown."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import StatetrimError
from ..maths.formatting import change, score_text, size
from ..storage.checkpoint import Checkpoint
from ..storage.json_file import write_text
from ..storage.output import output, partial_of, refuse_existing
from ..tasks import TASKS
from ..version import __version__
from . import html
from .document import Document, Text
from .findings import Findings, gather
from .markdown import markdown
from .sections import sections

MOST_BYTES = 2_000_000
HTML, MARKDOWN = "report.html", "report.md"


def report(artifacts: Sequence[str | Path | Checkpoint], out: str | Path) -> Path:
    """Write `out/report.html` and `out/report.md`, and return the first.

    `artifacts` are checkpoints before and after a cut, and what select, evaluate, analyze,
    benchmark and recover wrote, in any order; every section that lacks its artifact names the
    command that makes it. The page needs nothing beside itself and fetches nothing.
    """
    out = Path(out)
    files = {MARKDOWN: out / MARKDOWN, HTML: out / HTML}
    # In a directory that is there already, only the page itself is ours to lock.
    place = out / HTML if out.is_dir() and not partial_of(out).exists() else out
    if not out.is_dir():
        refuse_existing(out)
    given = [str(item.path if isinstance(item, Checkpoint) else item) for item in artifacts]
    record = {"format": "statetrim report", "statetrim": __version__, "artifacts": given}
    with output(place, "job.json", record, files=files) as work:
        if not work.done:
            document = compose(gather(artifacts))
            page = html.page(document)
            if len(page.encode()) > MOST_BYTES:
                raise StatetrimError(
                    f"the report would be {len(page.encode()) / 1e6:.1f} MB, more than a page "
                    f"should be; give fewer artifacts"
                )
            write_text(work.path / MARKDOWN, markdown(document))
            write_text(work.path / HTML, page)
            work.publish()
    return out / HTML


def compose(found: Findings) -> Document:
    """The document of these findings."""
    model = found.before or found.after
    name = model.path.resolve().name if model else Path(next(iter(found.sources.values()))).stem
    before, after = found.geometry_before, found.geometry_after
    highlights = []
    if before and after and before != after:
        old, new = before.state_numel * 4, after.state_numel * 4
        axes = (
            ("key", before.head_k_dim, after.head_k_dim),
            ("value", before.head_v_dim, after.head_v_dim),
        )
        kept = " and ".join(f"{now} of {was} {axis}" for axis, was, now in axes if now != was)
        lead = (
            f"The recurrent state of every sequence goes from {size(old)} to {size(new)}: each "
            f"head keeps {kept} channels"
        )
        highlights = [(change(old, new), "recurrent state per sequence")]
    elif found.plan:
        lead = f"Each head keeps {found.plan.keep} key channels"
    else:
        lead = "What statetrim's artifacts say of this model"
    highlights += _quality_highlights(found)
    return Document(
        title=f"{name}: what was cut and what it costs",
        lead=f"{lead}.",
        highlights=highlights,
        notes=[
            Text(f"These artifacts do not belong together: {sentence}.", "note")
            for sentence in found.mismatches
        ],
        sections=sections(found),
        footer=f"Made by statetrim {__version__} from the artifacts listed above. Nothing in this "
        f"page is fetched from anywhere.",
    )


def _quality_highlights(found: Findings) -> list[tuple[str, str]]:
    """The main metric of up to three tasks, original and cut model."""
    scores = found.scores
    if scores is None or len(scores.models) < 2:
        return []
    own = found.after.path.resolve().name if found.after else ""
    model = own if own in scores.models[1:] else scores.models[1]
    shown = []
    for task in scores.tasks[:3]:
        metric = TASKS[task].metric if task in TASKS else scores.metrics(task)[0]
        old, new = (scores.find(m, task, metric) for m in (scores.baseline, model))
        shown.append(
            (
                f"{score_text(old.value, old.unit)} → {score_text(new.value, new.unit)}",
                f"{task}, {metric}",
            )
        )
    return shown
