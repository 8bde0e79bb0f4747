"""Artifacts -> a report: one self-contained HTML page, and Markdown; both escape all text."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ..artifacts.card.markdown import escape, one_line
from ..errors import StatetrimError, errors_of
from ..judging.verdict import Outcome
from ..serving.capacity.compare import memory_lines
from ..serving.deployment import command_comment, ship_verdict, steps_after_trim
from ..serving.engines import named_engines
from ..serving.matrix import ServedBy
from ..storage.json_file import write_text
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import check_absent, open_output, partial_path
from ..version import __version__
from .charts import DARK, LIGHT, Chart
from .document import Document, Fact, Summary, as_sentence
from .findings import Findings, read_findings, serving_commands
from .sections import build_sections

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


def render_page(document: Document) -> str:
    """The page: no scripts, no external links, nothing to fetch."""
    style = _render("report.css", light=LIGHT, dark=DARK)
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _render("report.html", document=document, style=Markup(style), style_digest=style_hash)


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=select_autoescape(["html", "css"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"sentence": as_sentence, "svg": _svg}
    environment.filters |= {"plain": escape, "one_line": one_line}  # of Markdown
    return environment


def _svg(chart: Chart) -> Markup:
    from .figures import inline_svg  # a page without charts needs no matplotlib

    return Markup(inline_svg(chart))


def render_markdown(document: Document) -> str:
    """The document as Markdown; of pictures only the captions."""
    return _render("report.md.jinja", document=document) + "\n"


TONES = {
    Outcome.SHIP: "good",
    Outcome.RECOVER: "fair",
    Outcome.STOP: "bad",
    Outcome.UNKNOWN: "unknown",
}
MAX_QUALITY_LINES = 3


def title_text(findings: Findings) -> str:
    """The model's name, and its state's shape before and after if the original is given."""
    original, cut = findings.original, findings.cut
    if original is None or original.geometry == cut.geometry:
        return f"{(original or cut).name}: what a smaller state costs"
    before, after = original.geometry, cut.geometry
    shapes = f"{before.describe_against(after)} → {after.describe_against(before)}"
    return f"{original.name}: state {shapes}"


def build_summary(findings: Findings) -> Summary:
    """The verdict, facts on quality, memory and engines, and what to do next. Mismatches of the
    artifacts make it uncertain; they are notes, as warnings are."""
    mismatches = list(findings.mismatches)
    verdict = ship_verdict(
        findings.scores,
        findings.scored_name,
        findings.cut,
        mismatches,
        findings.engine_faults,
        findings.chosen_by,
    )
    facts = [Fact("Quality", verdict.facts[:MAX_QUALITY_LINES])] if verdict.facts else []
    if findings.original is not None:
        lines = memory_lines(findings.original, findings.cut.geometry, findings.counted_in)
        facts.append(Fact("Memory", lines))
    facts.append(_engine_fact(findings))
    if findings.original is not None:
        commands = list[str]()
        for step in steps_after_trim(verdict, findings.original, findings.cut):
            commands += [f"# {step.reason}", step.command]
        facts += [Fact("Next", [], commands)] if commands else []
    recorded_warnings = findings.trim.warnings if findings.trim else ()
    notes = [f"These artifacts do not belong together: {text}" for text in mismatches]
    notes += [f"Warning: {text}" for text in dict.fromkeys((*verdict.warnings, *recorded_warnings))]
    return Summary(
        answer=str(verdict.outcome).capitalize(),
        tone=TONES[verdict.outcome],
        reason=verdict.reason,
        facts=facts,
        notes=notes,
    )


def _engine_fact(findings: Findings) -> Fact:
    """Current engines that serve or refuse the shape, and the command of the requested or first."""
    cut = findings.cut
    lines = ServedBy.of(cut.model_type, cut.geometry, findings.engine).texts
    commands = serving_commands(findings)
    names = [engine.name for engine in named_engines().values()]
    serving = [name for name in commands if name in names]
    if len(serving) > 1:
        lines.append('"Where it runs" has the commands of the others')
    first = [command_comment(serving[0]), commands[serving[0]]] if serving else []
    return Fact("Engines", lines, first)
