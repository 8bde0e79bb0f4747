"""What a report is made from: a cut with its records, its original, and files that the user names;
all are untrusted. The shell commands of a report have paths as the user gave them."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..artifacts.analysis import Analysis
from ..artifacts.card.markdown import one_line
from ..artifacts.decision import Decision
from ..artifacts.memory import Memory
from ..artifacts.plan import PLAN_FILE, Plan
from ..artifacts.record import Artifact, kind_of
from ..artifacts.scores import Scores
from ..artifacts.sensitivity import Sensitivity
from ..artifacts.snapshots import Snapshots
from ..artifacts.steps import PruneRecord, RecoverRecord, RefitRecord, TrimRecord, data_sources
from ..artifacts.timings import Timings
from ..artifacts.verification import Verification
from ..errors import StatetrimError
from ..serving.deployment import recorded_serving, requested_engine, serve_commands
from ..serving.engines.engine import Engine
from ..serving.options import ServingOptions
from ..storage.checkpoint import Checkpoint
from ..storage.checkpoint_files import path_inside
from ..storage.json_file import read_json
from ..storage.output import ARTIFACTS
from ..storage.quantized.siblings import is_quantized_sibling
from .document import Missing

_KINDS: dict[str, type[Artifact | Analysis]] = {
    "analysis": Analysis,
    **{
        artifact.KIND: artifact
        for artifact in (
            PruneRecord, RefitRecord, RecoverRecord, TrimRecord, Scores, Timings, Decision,
            Snapshots, Sensitivity, Memory, Verification,
        )
    },
}  # fmt: skip
"""Kind of a file, which is also its name below `OUT/statetrim` and its field in Findings."""


@dataclass
class Findings:
    """All artifacts about one cut; what was not measured is None or empty."""

    cut: Checkpoint
    plan: Plan
    original: Checkpoint | None = None
    scores: Scores | None = None
    analysis: Analysis | None = None
    timings: Timings | None = None
    snapshots: Snapshots | None = None
    sensitivity: Sensitivity | None = None
    memory: Memory | None = None
    decision: Decision | None = None
    verifications: list[Verification] = field(default_factory=list)  # one per engine
    recover: RecoverRecord | None = None
    prune: PruneRecord | None = None
    refit: RefitRecord | None = None
    trim: TrimRecord | None = None
    sources: dict[str, str] = field(default_factory=dict)  # field -> file it was read from

    @property
    def engine(self) -> Engine | None:
        """The engine of `trim --for`."""
        return requested_engine(self.trim)

    @property
    def counted_in(self) -> ServingOptions:
        """How sequences are counted: in the engine of `trim --for`, else in the default."""
        return recorded_serving(self.trim)

    @property
    def scored_name(self) -> str | None:
        """The cut's name in the scores, found by the digest of its weights, or by its directory's
        name if there are no digests; None if they do not hold it."""
        if self.scores is None:
            return None
        fingerprints, names = self.scores.lineage.get("models"), self.scores.models
        if isinstance(fingerprints, list) and len(fingerprints) == len(names) and self.cut.shards:
            for name, fingerprint in zip(names[1:], fingerprints[1:], strict=True):
                if self.cut.has_digest(fingerprint):
                    return name
            return None
        return self.cut.name if self.cut.name in names[1:] else None

    @cached_property
    def compared_scores(self) -> dict[str, Scores]:
        """Shape -> its scores by which one was chosen, as far as they lie next to it."""
        if self.decision is None:
            return {}
        return self.decision.load_scores(Path(self.sources["decision"]).parent)

    @property
    def chosen_by(self) -> Scores | None:
        """The scores by which the shape was chosen."""
        return self.compared_scores.get(str(self.decision.chosen)) if self.decision else None

    @property
    def engine_faults(self) -> list[str]:
        """Faults of the cut's weights in engines. A refusal counts only of an engine that ran the
        original, if no other ran the cut."""
        if not self.cut.shards:
            return []
        fingerprint = self.cut.digest
        runs = [run for run in self.verifications if run.has_run(fingerprint)]
        if not runs:
            runs = [run for run in self.verifications if run.models[0] not in run.refusals]
        return [fault for run in runs for fault in run.faults_of(fingerprint)]

    @property
    def analyzes_original(self) -> bool:
        """Whether the analysis is of the original, and not of the cut."""
        if self.analysis is None or self.original is None or not self.original.shards:
            return False
        return self.original.has_digest(self.analysis.lineage.get("source"))

    @property
    def mismatches(self) -> Iterator[str]:
        """A sentence for each artifact that does not belong to the cut."""
        planned, original = self.plan.lineage, self.original
        source = planned.get("source")
        if source and original is not None and original.shards:
            was_planned = original.has_digest(source) or is_quantized_sibling(original, planned)
            if not was_planned:
                yield f"the plan was not made for {original.name}"
        if self.scores and self.measured_others(self.scores):
            yield "the scores are of other weights than this checkpoint's"
        if self.analysis and self.measured_others(self.analysis) and not self.analyzes_original:
            yield "the analysis is of other weights than this checkpoint's"
        for run in self.verifications:
            if self.measured_others(run):
                yield f"{run.version or run.engine} ran other weights than this checkpoint's"

    def measured_others(self, artifact: Scores | Analysis | Verification) -> bool:
        """Whether the artifact names the weights that it measured, and not the cut's."""
        named = artifact.lineage.get("models") or artifact.lineage.get("source")
        digests = named if isinstance(named, list) else [named]
        return bool(self.cut.shards and named) and not any(map(self.cut.has_digest, digests))


def truncated_text(value: Any) -> str:
    """The first 16 characters, as of a digest; empty for None."""
    return "" if value is None else str(value)[:16]


def read_findings(
    cut: Checkpoint, files: Sequence[str | Path] = (), original: Checkpoint | None = None
) -> Findings:
    """Read the plan and the records of a cut, and `files`, which replace records of their kind."""
    if not (cut.path / PLAN_FILE).exists():
        raise StatetrimError(
            f"{cut.path} holds no {PLAN_FILE}: a report is of a cut that prune or trim wrote"
        )
    findings = Findings(cut, Plan.load(path_inside(cut.path, PLAN_FILE)), original)
    findings.sources["plan"] = str(cut.path / PLAN_FILE)
    for path in map(Path, files):
        _read_file(findings, path)
    for kind in _KINDS:
        name = f"{ARTIFACTS}/{kind}.json"
        if kind not in findings.sources and (cut.path / name).exists():
            _read_file(findings, path_inside(cut.path, name))
            if kind == "scores" and findings.scores and findings.measured_others(findings.scores):
                findings.scores = None  # measured before the weights were refitted or trained,
                if findings.trim is not None:  # as trim's checks and warnings were
                    findings.trim = replace(findings.trim, checks={}, warnings=())
    return findings


def _read_file(findings: Findings, path: Path) -> None:
    """Read a JSON file into the field for the kind in its header; verifications are collected."""
    kind = kind_of(read_json(path, Scores.MAX_BYTES)) or ""
    if kind not in _KINDS:
        raise StatetrimError(
            f"{path} is not an artifact that a report knows; give what evaluate, analyze, verify, "
            f"benchmark, snapshot or recover wrote"
        )
    artifact = _KINDS[kind].load(path)
    if isinstance(artifact, Verification):
        findings.verifications.append(artifact)
        findings.sources[f"verification in {artifact.engine}"] = str(path)
        return
    if kind in findings.sources:
        raise StatetrimError(f"{path} and {findings.sources[kind]} are both {kind}; give one")
    findings.sources[kind] = str(path)
    setattr(findings, kind, artifact)


def command_arguments(findings: Findings) -> dict[str, Any]:
    """The shell-quoted paths `model`, `cut` and `text` (of calibration, as trim was asked for it or
    the plan names it), and its `tokens`, generated ones included; MODEL, or TEXT with 2**14 tokens,
    for those that are not known."""
    text, tokens = "TEXT", 2**14
    sources = data_sources(findings.plan.lineage.get("statistics"))
    texts = [source.text for source in sources if source.text is not None]
    if findings.trim is not None and findings.trim.text and findings.trim.tokens > 0:
        text, tokens = shell_quoted(findings.trim.text), findings.trim.tokens
    elif texts:
        text, tokens = shell_quoted(texts[0]), sum(source.tokens for source in sources)
    model = shell_quoted(findings.original.path) if findings.original else "MODEL"
    cut = shell_quoted(findings.cut.path)
    return {"model": model, "cut": cut, "text": text, "tokens": tokens}


def shell_quoted(value: Any) -> str:
    """`value` on one line, quoted for a shell."""
    return shlex.quote(one_line(str(value)))


def missing(findings: Findings, text: str, command: str) -> Missing:
    """What a section lacks, and the command that measures it, with `command_arguments`."""
    return Missing(text, [command.format(**command_arguments(findings))])


def serving_commands(findings: Findings) -> dict[str, str]:
    """Engine -> command that serves the cut; the engine of `trim --for` first."""
    path = one_line(str(findings.cut.path))
    return serve_commands(
        findings.cut,
        findings.cut.geometry,
        path,
        first=findings.engine,
        state_dtype=findings.trim.flag_dtype if findings.trim else None,
    )
