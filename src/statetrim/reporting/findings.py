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
from ..storage.checkpoint import Checkpoint, inside, open_checkpoint
from ..storage.hub.download import HubModel
from ..storage.json_file import read_object

SWEEP_FILE = "sweep.json"
RECORDS = "statetrim"  # where a checkpoint keeps how it was made
MOST_RECORD_BYTES = 24 * MIB
FIELDS = {"recover": "recovery"}
RECORDED = ("prune", "recover", "refit", "trim")
ARTIFACTS: dict[str, Callable[[Path], Any]] = {
    "plan": Plan.load,
    "analysis": Analysis.load,
    "scores": Scores.load,
    "timings": Timings.load,
    "sensitivity": Sensitivity.load,
    "sweep": Sweep.load,
    "decision": Decision.load,
}
WITHIN = ("prune", "refit", "recover", "trim", "scores", "analysis", "timings", "decision")
"""What a checkpoint may hold besides its plan; what the user gives takes precedence."""


@dataclass
class Findings:
    """All that is known of one cut; what was not given is None or empty."""

    before: Checkpoint | None = None
    after: Checkpoint | None = None
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
    def geometry_before(self) -> Geometry | None:
        if self.before is not None:
            return self.before.geometry
        return self.analysis.baseline.geometry if self.analysis and self.analysis.baseline else None

    @property
    def geometry_after(self) -> Geometry | None:
        if self.after is not None:
            return self.after.geometry
        if self.before is not None and self.plan is not None:
            return self.plan.pruned_geometry(self.before.geometry)
        return self.analysis.geometry if self.analysis else None

    @property
    def own_scores(self) -> bool:
        """Whether the scores are of this very checkpoint; True where that cannot be told."""
        if self.scores is None or self.after is None or not self.after.shards:
            return True
        scored = self.scores.lineage.get("models")
        return not isinstance(scored, list) or any(map(self.after.is_source, scored))

    @property
    def scored_name(self) -> str | None:
        """What the scores call this checkpoint; None where they do not tell."""
        if self.scores is None or self.after is None:
            return None
        marks, names = self.scores.lineage.get("models"), self.scores.models
        if isinstance(marks, list) and len(marks) == len(names) and self.after.shards:
            marked = list(zip(names, marks, strict=True))[1:]
            return next((name for name, mark in marked if self.after.is_source(mark)), None)
        own = self.after.name
        return own if own in names[1:] else None

    @property
    def engine_faults(self) -> list[str]:
        """What engines found wrong with this very checkpoint; that one refuses it counts only where
        it ran the original, and no other ran the cut."""
        if self.after is None or not self.after.shards:
            return []
        mark = self.after.fingerprint
        ran = [run for run in self.verifications if run.has_run(mark)]
        refused = [run for run in self.verifications if run.models[0] not in run.refusals]
        return [fault for run in ran or refused for fault in run.faults_of(mark)]

    @property
    def mismatches(self) -> Iterator[str]:
        """Artifacts that do not belong together, each in a sentence."""
        source = None if self.plan is None else self.plan.lineage.get("source")
        if source and self.prune and self.prune.get("source") != source:
            yield "the plan was made for another model than the one the checkpoint was cut from"
        before = self.before
        if source and before is not None and before.shards and not before.is_source(source):
            yield f"the plan was not made for {before.name}"
        if not self.own_scores:
            yield "the scores are of other weights than this checkpoint's"
        analysed = self.analysis.lineage.get("source") if self.analysis else None
        after = self.after
        if analysed and after is not None and after.shards and not after.is_source(analysed):
            yield "the analysis is of other weights than this checkpoint's"
        for run in self.verifications:
            marks = run.lineage.get("models")
            if after is not None and after.shards and after.fingerprint not in (marks or []):
                yield f"{run.version or run.engine} ran other weights than this checkpoint's"


def gather(artifacts: Sequence[str | Path | Checkpoint]) -> Findings:
    """Read artifacts in any order: JSON files of statetrim, and checkpoints before and after."""
    if not artifacts:
        raise StatetrimError("a report needs at least one artifact, such as a pruned checkpoint")
    found = Findings()
    models, files = dict[Path, Checkpoint](), list[Path]()
    for artifact in artifacts:
        if isinstance(artifact, Checkpoint):
            models[artifact.path] = artifact
        elif (Path(artifact) / SWEEP_FILE).is_file():
            _read_sweep(found, Path(artifact))
        elif Path(artifact).is_dir():
            models[Path(artifact)] = open_checkpoint(artifact)
        elif _on_the_hub(artifact):
            model = open_checkpoint(str(artifact))
            models[model.path] = model
        else:
            files.append(Path(artifact))
    _sort_checkpoints(found, models)
    for path in files:
        _read(found, path)
    if found.after is not None:
        _read_records(found, found.after.path)
    return found


def _on_the_hub(artifact: str | Path) -> bool:
    """A name such as OWNER/NAME; a JSON file that is missing is no model."""
    path = Path(artifact)
    return not (path.exists() or path.suffix == ".json") and bool(HubModel.named(str(artifact)))


def _read_sweep(found: Findings, directory: Path) -> None:
    """A directory that `trim --sweep` wrote: the sweep, and its plans."""
    _read(found, inside(directory, SWEEP_FILE))
    for path in sorted(directory.glob("plan-*.json")):
        found.sweep_plans[path.stem.removeprefix("plan-")] = str(path)


def _sort_checkpoints(found: Findings, models: Mapping[Path, Checkpoint]) -> None:
    """Before and after: one that was cut may itself be what another was cut from."""
    cut = [path for path in models if (path / RECORDS / "plan.json").exists()]
    for path, model in models.items():
        again = any(other != path and _cut_from(other, model) for other in cut)
        _put(found, "after" if path in cut and not again else "before", model, path)


def _cut_from(path: Path, model: Checkpoint) -> bool:
    plan = Plan.load(inside(path, f"{RECORDS}/plan.json"))
    return bool(model.shards) and model.is_source(plan.lineage.get("source"))


def _read_records(found: Findings, path: Path) -> None:
    """What the cut checkpoint says of itself."""
    own = Plan.load(inside(path, f"{RECORDS}/plan.json"))
    if found.plan is None:
        _put(found, "plan", own, path / RECORDS / "plan.json")
    elif not _same(own, found.plan):
        raise StatetrimError(f"{found.sources['plan']} is not the plan that {path} was cut by")
    for name in WITHIN:
        file, field_name = f"{RECORDS}/{name}.json", FIELDS.get(name, name)
        if (path / file).exists() and getattr(found, field_name) is None:
            _read(found, inside(path, file))
    within = path / RECORDS
    if found.scores and Path(found.sources["scores"]).parent == within and not found.own_scores:
        found.scores = None  # taken before the weights were trained or refitted
        if found.trim is not None:
            found.trim = {x: found.trim[x] for x in found.trim if x not in ("checks", "warnings")}


def _read(found: Findings, path: Path) -> None:
    kind = kind_of(read_object(path, MAX_BYTES)) or ""
    if kind in ARTIFACTS:
        _put(found, kind, ARTIFACTS[kind](path), path)
    elif kind == "verification":
        found.verifications.append(Verification.load(path))
        found.sources[f"verification in {found.verifications[-1].engine}"] = str(path)
    elif kind in RECORDED:
        _put(found, FIELDS.get(kind, kind), read_object(path, MOST_RECORD_BYTES), path)
    else:
        raise StatetrimError(
            f"{path} is not an artifact that a report knows; give a checkpoint, or what select, "
            f"evaluate, analyze, verify, benchmark, recover or trim --sweep wrote"
        )


def _same(one: Plan, other: Plan) -> bool:
    return all(
        set(a) == set(b) and all(a[layer].equal(b[layer]) for layer in a)
        for a, b in (
            (one.kept, other.kept),
            (one.kept_values or {}, other.kept_values or {}),
            (one.kept_heads or {}, other.kept_heads or {}),
        )
    )


def _put(found: Findings, name: str, value: Any, path: Path) -> None:
    if getattr(found, name) is not None:
        raise StatetrimError(
            f"{path} and {found.sources[name]} are both {NAMES.get(name, name)}; a report is of one"
        )
    setattr(found, name, value)
    found.sources[name] = str(path)


NAMES = {
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
