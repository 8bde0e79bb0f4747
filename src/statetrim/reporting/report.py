"""Artifacts -> a report: one self-contained HTML page, and its text in Markdown."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import StatetrimError, errors_of
from ..storage.json_file import write_text
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import check_absent, open_output, partial_path
from ..version import __version__
from .document import Document
from .findings import Findings, read_findings
from .render import render_markdown, render_page
from .sections import build_sections
from .summary import build_summary, title_text

MAX_PAGE_BYTES = 2_000_000
# Errors that an untrusted record may cause: records are not validated in full.
_BAD_RECORD_ERRORS = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError
)  # fmt: skip
HTML, MARKDOWN = "report.html", "report.md"


def report(
    cut: ModelLike,
    files: Sequence[str | Path] = (),
    *,
    out: str | Path,
    baseline: ModelLike | None = None,
) -> Path:
    """Write `out/report.html` and `out/report.md`, and return the path of the first.

    The report is of a cut and the records in its directory `statetrim`. `files` are others that
    evaluate, analyze, verify, benchmark, snapshot or recover wrote, and `baseline` is the original,
    with which sizes are compared. For each missing artifact the report gives the command that makes
    it. The page is one file and fetches nothing. Raises StatetrimError if a report is in `out`
    already, for two files of a kind or invalid ones, and for a page above MAX_PAGE_BYTES.
    """
    out = Path(out)
    pages = {MARKDOWN: out / MARKDOWN, HTML: out / HTML}
    # In a directory that exists already, lock and replace only the page itself.
    output_path = out / HTML if out.is_dir() and not partial_path(out).exists() else out
    if not out.is_dir():
        check_absent(out)
    cut = as_checkpoint(cut)
    original = None if baseline is None else as_checkpoint(baseline)
    record = {
        "format": "statetrim report",
        "statetrim": __version__,
        "cut": str(cut.path),
        "baseline": original and str(original.path),
        "files": list(map(str, files)),
    }
    with open_output(output_path, "job.json", record, files=pages) as work:
        if not work.done:
            problem = "a record among the artifacts holds values that mean nothing"
            hint = "; leave it out or write it again"
            with errors_of(problem, hint, _BAD_RECORD_ERRORS):
                document = build_document(read_findings(cut, files, original))
                page = render_page(document)
            if len(page.encode()) > MAX_PAGE_BYTES:
                raise StatetrimError(
                    f"the report would be {len(page.encode()) / 1e6:.1f} MB, more than a page "
                    f"should be; give fewer files"
                )
            write_text(work.path / MARKDOWN, render_markdown(document))
            write_text(work.path / HTML, page)
            work.publish()
    return out / HTML


def build_document(findings: Findings) -> Document:
    """Compose title, summary and sections."""
    return Document(
        title=title_text(findings),
        summary=build_summary(findings),
        sections=build_sections(findings),
        footer=f"Written by statetrim {__version__} from the artifacts listed above; paths and "
        f"commands are as given where it was run. Nothing in this page is fetched from anywhere.",
    )
