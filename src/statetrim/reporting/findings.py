"""The artifacts that a report is made from; untrusted, each recognised by its header."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..artifacts.analysis import Analysis
from ..artifacts.decision import Decision
from ..artifacts.plan import PLAN_FILE, Plan
from ..artifacts.record import Artifact, kind_of
from ..artifacts.scores import Scores
from ..artifacts.sensitivity import Sensitivity
from ..artifacts.snapshots import Snapshots
from ..artifacts.steps import PruneRecord, RecoverRecord, RefitRecord, TrimRecord
from ..artifacts.timings import Timings
from ..artifacts.verification import Verification
from ..errors import StatetrimError
from ..geometry import Geometry
from ..serving.engine_names import requested_engine
from ..serving.options import ServingOptions, default_serving
from ..storage.checkpoint import Checkpoint, open_checkpoint, path_inside
from ..storage.hub.download import HubModel
from ..storage.json_file import read_json
from ..storage.output import ARTIFACTS
from ..storage.quantized.siblings import is_sibling

CARRIED_KINDS = ("prune", "refit", "recover", "trim", "scores", "analysis", "timings", "decision")
"""Kinds of files, next to the plan, that a cut carries; files that the user gives win."""
PLURALS = {
    "original": "checkpoints that statetrim did not cut",
    "cut": "cut checkpoints",
    "plan": "plans",
    "analysis": "analyses",
    "prune": "records of a cut",
    "recover": "records of a recovery",
    "refit": "records of a refit",
    "trim": "records of a trim",
    "sensitivity": "sensitivities",
    "decision": "decisions",
}


@dataclass
class Findings:
    """All artifacts about one cut; what was not given is None or empty."""

    original: Checkpoint | None = None
    cut: Checkpoint | None = None
    plan: Plan | None = None
    scores: Scores | None = None
    analysis: Analysis | None = None
    timings: Timings | None = None
    snapshots: Snapshots | None = None
    sensitivity: Sensitivity | None = None
    decision: Decision | None = None
    compared_plans: dict[str, str] = field(default_factory=dict)  # shape -> file of its plan
    verifications: list[Verification] = field(default_factory=list)  # one per engine
    recover: RecoverRecord | None = None
    prune: PruneRecord | None = None
    refit: RefitRecord | None = None
    trim: TrimRecord | None = None
    sources: dict[str, str] = field(default_factory=dict)  # field -> file it was read from

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The cut, else the original."""
        return self.cut or self.original

    @property
    def geometry(self) -> Geometry | None:
        """The geometry of the cut, else of the original."""
        return self.cut_geometry or self.original_geometry

    @property
    def original_geometry(self) -> Geometry | None:
        """The original's, from its checkpoint or from the analysis of it."""
        if self.original is not None:
            return self.original.geometry
        return self.analysis.baseline.geometry if self.analysis and self.analysis.baseline else None

    @property
    def cut_geometry(self) -> Geometry | None:
        """The cut's, from its checkpoint, else from original and plan, else from the analysis,
        whose model counts as the cut.

        Raises StatetrimError if the plan does not fit the original.
        """
        if self.cut is not None:
            return self.cut.geometry
        if self.original is not None and self.plan is not None:
            return self.plan.pruned_geometry(self.original.geometry)
        return self.analysis.geometry if self.analysis else None

    @property
    def counted_in(self) -> ServingOptions:
        """How sequences are counted: in the engine of `trim --for`, else in vLLM."""
        return default_serving(requested_engine(self.trim))

    @property
    def has_own_scores(self) -> bool:
        """Whether the scores were measured on the cut's weights; True also if they do not say, or
        without scores or a cut with weights."""
        if self.scores is None or self.cut is None or not self.cut.shards:
            return True
        fingerprints = self.scores.lineage.get("models")
        return not isinstance(fingerprints, list) or any(map(self.cut.has_digest, fingerprints))

    @property
    def scored_name(self) -> str | None:
        """The cut's name in the scores, found by the digest of its weights, or by its directory's
        name if there are no digests; None if they do not hold it."""
        if self.scores is None or self.cut is None:
            return None
        fingerprints, names = self.scores.lineage.get("models"), self.scores.models
        if isinstance(fingerprints, list) and len(fingerprints) == len(names) and self.cut.shards:
            for name, fingerprint in zip(names[1:], fingerprints[1:], strict=True):
                if self.cut.has_digest(fingerprint):
                    return name
            return None
        cut_name = self.cut.name
        return cut_name if cut_name in names[1:] else None

    @property
    def chosen_by(self) -> Scores | None:
        """The scores by which the shape was chosen, if they lie next to the decision."""
        if self.decision is None:
            return None
        return self.decision.chosen_scores(Path(self.sources["decision"]).parent)

    @property
    def engine_faults(self) -> list[str]:
        """Faults of the cut's weights in engines.

        An engine that refuses the cut counts only if it ran the original and no other engine ran
        the cut.
        """
        if self.cut is None or not self.cut.shards:
            return []
        fingerprint = self.cut.digest
        runs = [run for run in self.verifications if run.has_run(fingerprint)]
        if not runs:
            runs = [run for run in self.verifications if run.models[0] not in run.refusals]
        faults: list[str] = []
        for run in runs:
            faults += run.faults_of(fingerprint)
        return faults

    @property
    def analyzes_original(self) -> bool:
        """Whether the analysis is of the original, and not of the cut."""
        if self.analysis is None or self.original is None or not self.original.shards:
            return False
        return self.original.has_digest(self.analysis.lineage.get("source"))

    @property
    def mismatches(self) -> Iterator[str]:
        """A sentence for each artifact that does not belong to the others."""
        planned = {} if self.plan is None else self.plan.lineage
        source = planned.get("source")
        original = self.original if self.original is not None and self.original.shards else None
        is_quantized = self.cut is not None and bool(self.cut.quantized)
        if source and self.prune and self.prune.source != source and not is_quantized:
            # A quantised checkpoint may be cut by the plan of its sibling, which `prune` checks.
            yield "the plan was made for another model than the one the checkpoint was cut from"
        if (
            source
            and original is not None
            and not (original.has_digest(source) or is_sibling(original, planned))
        ):
            yield f"the plan was not made for {original.name}"
        if not self.has_own_scores:
            yield "the scores are of other weights than this checkpoint's"
        cut = self.cut
        if cut is None or not cut.shards:
            return
        analyzed = self.analysis.lineage.get("source") if self.analysis else None
        if analyzed and not cut.has_digest(analyzed) and not self.analyzes_original:
            yield "the analysis is of other weights than this checkpoint's"
        for run in self.verifications:
            if cut.digest not in (run.lineage.get("models") or []):
                yield f"{run.version or run.engine} ran other weights than this checkpoint's"


def as_mapping(value: Any) -> Mapping[str, Any]:
    """A part of an untrusted record if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def truncated_text(value: Any) -> str:
    """The first 16 characters, as of a digest; empty for None."""
    return "" if value is None else str(value)[:16]


def read_findings(artifacts: Sequence[str | Path | Checkpoint]) -> Findings:
    """Read JSON files of statetrim, checkpoints or hub ids.

    The records in the cut's directory are read too, where no such file was given. Raises
    StatetrimError if there are none, two of a kind (other than verifications), files of an unknown
    kind, or a plan that is not the cut's.
    """
    if not artifacts:
        raise StatetrimError("a report needs at least one artifact, such as a pruned checkpoint")
    findings = Findings()
    checkpoints, files = dict[Path, Checkpoint](), list[Path]()
    for artifact in artifacts:
        if isinstance(artifact, Checkpoint):
            checkpoints[artifact.path] = artifact
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
    """Whether this is OWNER/NAME and no path; a missing JSON file is not a model."""
    path = Path(artifact)
    return not (path.exists() or path.suffix == ".json") and bool(HubModel.parse(str(artifact)))


def _list_compared_plans(findings: Findings, directory: Path) -> None:
    for path in sorted(directory.glob("plan-*x*.json")):
        findings.compared_plans[path.stem.removeprefix("plan-")] = str(path)


def _assign_checkpoints(findings: Findings, checkpoints: Mapping[Path, Checkpoint]) -> None:
    """Assign original and cut, which is a directory with a plan; a cut from which another was
    pruned counts as an original."""
    pruned_paths = [path for path in checkpoints if (path / PLAN_FILE).exists()]
    for path, checkpoint in checkpoints.items():
        is_source = any(other != path and _is_cut_from(other, checkpoint) for other in pruned_paths)
        role = "cut" if path in pruned_paths and not is_source else "original"
        _register(findings, role, checkpoint, path)


def _is_cut_from(cut_path: Path, model: Checkpoint) -> bool:
    """Whether the plan in `cut_path` was made for `model`; False if `model` has no weights."""
    plan = Plan.load(path_inside(cut_path, PLAN_FILE))
    return bool(model.shards) and model.has_digest(plan.lineage.get("source"))


def _read_cut_records(findings: Findings, path: Path) -> None:
    """Read the plan and the records that the cut checkpoint at `path` carries; files that the user
    gave are kept instead, but not a plan that keeps other channels."""
    carried_plan = Plan.load(path_inside(path, PLAN_FILE))
    if findings.plan is None:
        _register(findings, "plan", carried_plan, path / PLAN_FILE)
    elif not _keep_same_channels(carried_plan, findings.plan):
        raise StatetrimError(f"{findings.sources['plan']} is not the plan that {path} was cut by")
    _list_compared_plans(findings, path / ARTIFACTS)
    for kind in CARRIED_KINDS:
        file = f"{ARTIFACTS}/{kind}.json"
        if (path / file).exists() and kind not in findings.sources:
            _read_artifact(findings, path_inside(path, file))
    if findings.scores is None or findings.has_own_scores:
        return
    if Path(findings.sources["scores"]).parent == path / ARTIFACTS:
        # Measured before the weights were refitted or trained, as trim's checks and warnings were.
        findings.scores = None
        if findings.trim is not None:
            findings.trim = replace(findings.trim, checks={}, warnings=())


def _read_artifact(findings: Findings, path: Path) -> None:
    """Read a JSON file into the field of `findings` for the kind in its header; verifications are
    collected."""
    kind = kind_of(read_json(path, Scores.MAX_BYTES)) or ""
    if kind == "verification":
        verification = Verification.load(path)
        findings.verifications.append(verification)
        findings.sources[f"verification in {verification.engine}"] = str(path)
    elif kind in _LOADERS:
        _register(findings, kind, _LOADERS[kind](path), path)
    else:
        raise StatetrimError(
            f"{path} is not an artifact that a report knows; give a checkpoint, or what "
            f"select, evaluate, analyze, verify, benchmark, snapshot, recover or trim wrote"
        )


_RECORDS = (PruneRecord, RefitRecord, RecoverRecord, TrimRecord)
_KINDS: tuple[type[Artifact], ...] = (
    Plan, Scores, Timings, Snapshots, Sensitivity, Decision, *_RECORDS
)  # fmt: skip
_LOADERS: dict[str, Callable[[Path], Any]] = {
    "analysis": Analysis.load, **{artifact.KIND: artifact.load for artifact in _KINDS}
}  # fmt: skip
"""Kind of file, which is also the name of its field in Findings -> function that reads it."""


def _register(findings: Findings, name: str, value: object, path: Path) -> None:
    """Set the field `name`, which was read from `path`; refuses a second of a kind."""
    if name in findings.sources:
        raise StatetrimError(
            f"{path} and {findings.sources[name]} are both {PLURALS.get(name, name)}; a report is "
            f"of one"
        )
    findings.sources[name] = str(path)
    setattr(findings, name, value)


def _keep_same_channels(first: Plan, second: Plan) -> bool:
    for name in ("kept", "kept_values", "kept_heads"):
        old, new = getattr(first, name) or {}, getattr(second, name) or {}
        if set(old) != set(new) or not all(old[layer].equal(new[layer]) for layer in old):
            return False
    return True
