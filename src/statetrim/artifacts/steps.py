"""How a checkpoint was made: the records of prune, refit, recover and trim, which are untrusted."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from ..cut.geometry import Geometry
from ..errors import StatetrimError
from ..storage.auxiliary_files import copy_all_but_weights
from ..storage.checkpoint import Checkpoint, open_checkpoint, require_prunable
from ..storage.checkpoint_files import path_inside
from ..storage.json_file import write_json, write_text
from ..storage.output import ARTIFACTS, CARD
from ..storage.quantized.siblings import is_quantized_sibling
from .plan import PLAN_FILE, Plan, load_carried_plan
from .record import Artifact, as_fields, parse_record

logger = logging.getLogger("statetrim")


@dataclass(frozen=True)
class DataSource:
    """Sequences that a step read: those of a text after its first `skip` tokens, or generated."""

    count: int
    length: int
    digest: str = ""
    text: str | None = None
    skip: int = 0
    generated: str | None = None
    seed: int = 0  # of a generated source

    @property
    def tokens(self) -> int:
        return self.count * self.length

    def validate(self) -> None:
        if not (1 <= self.count < 2**31 and 2 <= self.length < 2**31 and self.skip >= 0):
            raise ValueError("count, length and skip must be sizes of a text")


def data_sources(lineage: Any) -> list[DataSource]:
    """The sources in the lineage of statistics; empty if it has none. Invalid ones are left out."""
    entries = lineage.get("data") if isinstance(lineage, Mapping) else None
    sources = []
    for entry in entries if isinstance(entries, list) else []:
        try:
            sources.append(parse_record(entry, DataSource, "data"))
        except StatetrimError:
            continue
    return sources


@dataclass(frozen=True)
class StepRecord(Artifact):
    """What the record of any step states: the version of statetrim, and the digest of the model."""

    statetrim: str = ""
    source: str | None = None

    @classmethod
    def of_model(cls, model: Checkpoint) -> Self:
        """The record that a checkpoint carries; an empty one if it is missing or damaged."""
        name = f"{ARTIFACTS}/{cls.KIND}.json"
        try:
            return cls.load(path_inside(model.path, name))
        except StatetrimError:
            return cls()


def write_all_but_weights(
    model: Checkpoint,
    directory: Path,
    file: str,
    record: Mapping[str, Any],
    card: Callable[[str, str, Mapping[str, Any]], str],
) -> None:
    """Write all other files of a step that kept the shapes of `model`; last `record`, as `file`."""
    original_card = copy_all_but_weights(model, directory, file)
    write_text(directory / CARD, card(original_card, model.path.resolve().name, record))
    result = require_prunable(open_checkpoint(directory, model.family))
    assert [shard.tensors for shard in result.shards] == [shard.tensors for shard in model.shards]
    write_json(directory / ARTIFACTS / file, as_fields(record))


@dataclass(frozen=True)
class PruneRecord(StepRecord):
    """The relative error of each tensor that was quantised again, by name."""

    KIND = "prune"

    requantized: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RefitRecord(StepRecord):
    """What refit.json states: the errors by layer, and the lineage of the statistics."""

    KIND = "refit"

    layers: dict[str, dict[str, float]] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecoverRecord(StepRecord):
    """What recover.json states: options, losses by step, and the names of the trained tensors."""

    KIND = "recover"

    student: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    coverage: dict[str, Any] = field(default_factory=dict)
    curve: Sequence[dict[str, float | None]] = ()
    held_out: Sequence[dict[str, float | None]] = ()
    trained_tensors: Sequence[str] = ()


@dataclass(frozen=True)
class TrimRecord(StepRecord):
    """What trim.json states. The text before `measured_from` also served to choose a shape."""

    KIND = "trim"

    text: str | None = None
    tokens: int = 0
    measured_from: int = 0
    recipe: dict[str, Any] | None = None
    checks: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    flag_dtype: Literal["bfloat16"] | None = None  # of the state, by a flag of the engine


def read_origin(model: Checkpoint, original: Checkpoint) -> dict[str, Any] | None:
    """How `model` was cut: the digest of its original (`source`; that of `original`, if that is its
    quantised release, and None if the plan cannot be read), `methods`, `recovered` and `shape`.
    None for a model that was not cut."""
    if not (model.path / PLAN_FILE).is_file():
        return None
    plan = _plan_of(model)
    source = plan.lineage.get("source")
    is_original = original.has_digest(source) or is_quantized_sibling(original, plan.lineage)
    return {
        "source": original.digest if is_original else source,
        "methods": [axis_plan.method for axis_plan in plan.axes.values()],
        "recovered": (model.path / ARTIFACTS / "recover.json").is_file(),
        "shape": shape_text(model.geometry),
    }


def shape_text(geometry: Geometry) -> str:
    """Heads and widths of every layer; cuts of one model with the same text have one shape."""
    widths = ",".join(f"{layer}={k}x{v}" for layer, (k, v) in geometry.shapes.items())
    return f"{geometry.num_k_heads} and {geometry.num_v_heads} heads: {widths}"


def vocabulary_size(model: Checkpoint) -> int | None:
    """The vocabulary size by the config, which is the perplexity of guessing; None if unknown."""
    for config in (model.config, model.text_config):
        if type(config.get("vocab_size")) is int:
            return int(config["vocab_size"])
    return None


def read_seen_texts(model: Checkpoint) -> list[tuple[DataSource, int]]:
    """What a cut was calibrated and trained on, and the token before which all count as seen."""
    refit, recover = RefitRecord.of_model(model), RecoverRecord.of_model(model)
    statistics = _plan_of(model).lineage.get("statistics")
    chosen_until = TrimRecord.of_model(model).measured_from
    seen = []
    for source in [*data_sources(statistics), *data_sources(refit.statistics)]:
        seen.append((source, max(chosen_until, source.skip + source.tokens)))
    for source in data_sources({"data": [{**recover.data, "text": recover.text}]}):
        seen.append((source, source.skip + source.tokens))
    return [(source, end) for source, end in seen if source.text is not None]


def _plan_of(model: Checkpoint) -> Plan:
    """The plan that a cut carries; an empty one if it is missing or, with a warning, damaged."""
    try:
        return load_carried_plan(model) or Plan({})
    except StatetrimError as error:
        logger.warning(f"what {model.path} was cut from and by is not known: {error}")
        return Plan({})
