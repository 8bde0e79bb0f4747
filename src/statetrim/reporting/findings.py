"""What a report is made from: untrusted artifacts, each recognised by what stands in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..artifacts.analysis import Analysis
from ..artifacts.decision import Decision
from ..artifacts.header import kind_of
from ..artifacts.plan import Plan
from ..artifacts.scores import MAX_BYTES, Scores
from ..artifacts.sensitivity import Sensitivity
from ..artifacts.sweep import Sweep
from ..artifacts.timings import Timings
from ..artifacts.verification import Verification
from ..errors import StatetrimError
from ..geometry import Geometry
from ..maths.units import MIB
from ..storage.checkpoint import Checkpoint, open_checkpoint, path_inside
from ..storage.hub.download import HubModel
from ..storage.json_file import read_json

SWEEP_FILE = "sweep.json"
RECORDS_DIR = "statetrim"  # where a checkpoint keeps how it was made
MAX_RECORD_BYTES = 24 * MIB
RECORD_FIELDS = {"recover": "recovery"}
RECORD_KINDS = ("prune", "recover", "refit", "trim")
LOADERS: dict[str, Callable[[Path], Any]] = {
    "plan": Plan.load,
    "analysis": Analysis.load,
    "scores": Scores.load,
    "timings": Timings.load,
    "sensitivity": Sensitivity.load,
    "sweep": Sweep.load,
    "decision": Decision.load,
}
KINDS_IN_CHECKPOINT = (
    "prune",
    "refit",
    "recover",
    "trim",
    "scores",
    "analysis",
    "timings",
    "decision",
)
"""What a checkpoint may hold besides its plan; what the user gives takes precedence."""


@dataclass
class Findings:
    """All that is known of one cut; what was not given is None or empty."""

    original: Checkpoint | None = None
    cut: Checkpoint | None = None
    plan: Plan | None = None
    scores: Scores | None = None
    analysis: Analysis | None = None
    timings: Timings | None = None
    sweep: Sweep | None = None
    sweep_plans: dict[str, str] = field(default_factory=dict)  # shape -> the file of its plan
    sensitivity: Sensitivity | None = None
    decision: Decision | None = None
    verifications: list[Verification] = field(default_factory=list)  # one an engine
    recovery: dict[str, Any] | None = None
    prune: dict[str, Any] | None = None
    refit: dict[str, Any] | None = None
    trim: dict[str, Any] | None = None
    sources: dict[str, str] = field(default_factory=dict)  # what -> the file it came from

    @property
    def original_geometry(self) -> Geometry | None:
        if self.original is not None:
            return self.original.geometry
        return self.analysis.baseline.geometry if self.analysis and self.analysis.baseline else None

    @property
    def cut_geometry(self) -> Geometry | None:
        if self.cut is not None:
            return self.cut.geometry
        if self.original is not None and self.plan is not None:
            return self.plan.pruned_geometry(self.original.geometry)
        return self.analysis.geometry if self.analysis else None

    @property
    def has_own_scores(self) -> bool:
        """Whether the scores are of this very checkpoint; True where that cannot be told."""
        if self.scores is None or self.cut is None or not self.cut.shards:
            return True
        fingerprints = self.scores.lineage.get("models")
        return not isinstance(fingerprints, list) or any(map(self.cut.has_digest, fingerprints))

    @property
    def scored_name(self) -> str | None:
        """What the scores call this checkpoint; None where they do not tell."""
        if self.scores is None or self.cut is None:
            return None
        fingerprints, names = self.scores.lineage.get("models"), self.scores.models
        if isinstance(fingerprints, list) and len(fingerprints) == len(names) and self.cut.shards:
            cuts = list(zip(names, fingerprints, strict=True))[1:]
            return next(
                (name for name, fingerprint in cuts if self.cut.has_digest(fingerprint)), None
            )
        cut_name = self.cut.name
        return cut_name if cut_name in names[1:] else None

    @property
    def engine_faults(self) -> list[str]:
        """What engines found wrong with this very checkpoint; that one refuses it counts only where
        it ran the original, and no other ran the cut."""
        if self.cut is None or not self.cut.shards:
            return []
        fingerprint = self.cut.fingerprint
        completed = [run for run in self.verifications if run.has_run(fingerprint)]
        with_original_run = [run for run in self.verifications if run.models[0] not in run.refusals]
        return [
            fault for run in completed or with_original_run for fault in run.faults_of(fingerprint)
        ]

    @property
    def mismatches(self) -> Iterator[str]:
        """Artifacts that do not belong together, each in a sentence."""
        source = None if self.plan is None else self.plan.lineage.get("source")
        if source and self.prune and self.prune.get("source") != source:
            yield "the plan was made for another model than the one the checkpoint was cut from"
        original = self.original
        if source and original is not None and original.shards and not original.has_digest(source):
            yield f"the plan was not made for {original.name}"
        if not self.has_own_scores:
            yield "the scores are of other weights than this checkpoint's"
        analysis_source = self.analysis.lineage.get("source") if self.analysis else None
        cut = self.cut
        if (
            analysis_source
            and cut is not None
            and cut.shards
            and not cut.has_digest(analysis_source)
        ):
            yield "the analysis is of other weights than this checkpoint's"
        for run in self.verifications:
            fingerprints = run.lineage.get("models")
            if cut is not None and cut.shards and cut.fingerprint not in (fingerprints or []):
                yield f"{run.version or run.engine} ran other weights than this checkpoint's"


def read_findings(artifacts: Sequence[str | Path | Checkpoint]) -> Findings:
    """Read artifacts in any order: JSON files of statetrim, and checkpoints before and after."""
    if not artifacts:
        raise StatetrimError("a report needs at least one artifact, such as a pruned checkpoint")
    findings = Findings()
    checkpoints, files = dict[Path, Checkpoint](), list[Path]()
    for artifact in artifacts:
        if isinstance(artifact, Checkpoint):
            checkpoints[artifact.path] = artifact
        elif (Path(artifact) / SWEEP_FILE).is_file():
            _read_sweep(findings, Path(artifact))
        elif Path(artifact).is_dir():
            checkpoints[Path(artifact)] = open_checkpoint(artifact)
        elif _is_hub_name(artifact):
            checkpoint = open_checkpoint(str(artifact))
            checkpoints[checkpoint.path] = checkpoint
        else:
            files.append(Path(artifact))
    _assign_checkpoints(findings, checkpoints)
    for path in files:
        _read_artifact(findings, path)
    if findings.cut is not None:
        _read_cut_records(findings, findings.cut.path)
    return findings


def _is_hub_name(artifact: str | Path) -> bool:
    """A name such as OWNER/NAME; a JSON file that is missing is no model."""
    path = Path(artifact)
    return not (path.exists() or path.suffix == ".json") and bool(HubModel.parse(str(artifact)))


def _read_sweep(findings: Findings, directory: Path) -> None:
    """A directory that `trim --sweep` wrote: the sweep, and its plans."""
    _read_artifact(findings, path_inside(directory, SWEEP_FILE))
    for path in sorted(directory.glob("plan-*.json")):
        findings.sweep_plans[path.stem.removeprefix("plan-")] = str(path)


def _assign_checkpoints(findings: Findings, checkpoints: Mapping[Path, Checkpoint]) -> None:
    """Before and after: one that was cut may itself be what another was cut from."""
    pruned_paths = [path for path in checkpoints if (path / RECORDS_DIR / "plan.json").exists()]
    for path, checkpoint in checkpoints.items():
        is_source_of_another = any(
            other != path and _is_cut_from(other, checkpoint) for other in pruned_paths
        )
        _set_once(
            findings,
            "after" if path in pruned_paths and not is_source_of_another else "before",
            checkpoint,
            path,
        )


def _is_cut_from(cut_path: Path, model: Checkpoint) -> bool:
    plan = Plan.load(path_inside(cut_path, f"{RECORDS_DIR}/plan.json"))
    return bool(model.shards) and model.has_digest(plan.lineage.get("source"))


def _read_cut_records(findings: Findings, path: Path) -> None:
    """What the cut checkpoint says of itself."""
    carried_plan = Plan.load(path_inside(path, f"{RECORDS_DIR}/plan.json"))
    if findings.plan is None:
        _set_once(findings, "plan", carried_plan, path / RECORDS_DIR / "plan.json")
    elif not _keep_same_channels(carried_plan, findings.plan):
        raise StatetrimError(f"{findings.sources['plan']} is not the plan that {path} was cut by")
    for name in KINDS_IN_CHECKPOINT:
        file, field_name = f"{RECORDS_DIR}/{name}.json", RECORD_FIELDS.get(name, name)
        if (path / file).exists() and getattr(findings, field_name) is None:
            _read_artifact(findings, path_inside(path, file))
    records_dir = path / RECORDS_DIR
    if (
        findings.scores
        and Path(findings.sources["scores"]).parent == records_dir
        and not findings.has_own_scores
    ):
        findings.scores = None  # taken before the weights were trained or refitted
        if findings.trim is not None:
            findings.trim = {
                x: findings.trim[x] for x in findings.trim if x not in ("checks", "warnings")
            }


def _read_artifact(findings: Findings, path: Path) -> None:
    kind = kind_of(read_json(path, MAX_BYTES)) or ""
    if kind in LOADERS:
        _set_once(findings, kind, LOADERS[kind](path), path)
    elif kind == "verification":
        findings.verifications.append(Verification.load(path))
        findings.sources[f"verification in {findings.verifications[-1].engine}"] = str(path)
    elif kind in RECORD_KINDS:
        _set_once(findings, RECORD_FIELDS.get(kind, kind), read_json(path, MAX_RECORD_BYTES), path)
    else:
        raise StatetrimError(
            f"{path} is not an artifact that a report knows; give a checkpoint, or what select, "
            f"evaluate, analyze, verify, benchmark, recover or trim --sweep wrote"
        )


def _keep_same_channels(first: Plan, second: Plan) -> bool:
    return all(
        set(a) == set(b) and all(a[layer].equal(b[layer]) for layer in a)
        for a, b in (
            (first.kept, second.kept),
            (first.kept_values or {}, second.kept_values or {}),
            (first.kept_heads or {}, second.kept_heads or {}),
        )
    )


def _set_once(findings: Findings, field_name: str, value: Any, path: Path) -> None:
    if getattr(findings, field_name) is not None:
        raise StatetrimError(
            f"{path} and {findings.sources[field_name]} are both {PLURALS.get(field_name, field_name)}; a report is of one"
        )
    setattr(findings, field_name, value)
    findings.sources[field_name] = str(path)


PLURALS = {
    "before": "checkpoints that statetrim did not cut",
    "after": "cut checkpoints",
    "plan": "plans",
    "analysis": "analyses",
    "prune": "records of a cut",
    "recovery": "records of a recovery",
    "refit": "records of a refit",
    "trim": "records of a trim",
    "sweep": "sweeps",
    "sensitivity": "sensitivities",
    "decision": "decisions",
}
