"""How a checkpoint was made, as its own records, which are untrusted, state it."""

from dataclasses import dataclass
from typing import Any

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.json_file import read_json
from ..storage.output import ARTIFACTS, MAX_RECORD_BYTES
from .plan import MAX_PLAN_BYTES


@dataclass(frozen=True)
class SeenText:
    """Text that a cut was calibrated or trained on: `count` sequences of `length` tokens after the
    first `skip` tokens of `text`, and their digest. All tokens before `end` count as seen."""

    text: str
    skip: int
    length: int
    count: int
    digest: str
    end: int


def read_origin(model: Checkpoint, original: Checkpoint) -> dict[str, Any] | None:
    """The digest of the model that `model` was cut from ("source"), the names of its "methods", and
    whether it was trained after the cut ("recovered"); None for a model that was not cut.

    A digest of `original` in the form of an earlier version is replaced by today's. If the plan
    cannot be read, the source is None and there are no methods.
    """
    if not (model.path / ARTIFACTS / "plan.json").is_file():
        return None
    try:
        plan = read_json(path_inside(model.path, f"{ARTIFACTS}/plan.json"), MAX_PLAN_BYTES)
    except StatetrimError:
        return {"source": None, "methods": [], "recovered": False}
    lineage = plan.get("lineage")
    source = lineage.get("source") if isinstance(lineage, dict) else None
    methods = [plan.get("method"), plan.get("value_method"), plan.get("head_method")]
    return {
        "source": original.digest if original.has_digest(source) else source,
        "methods": [name for name in methods if isinstance(name, str) and name != "none"],
        "recovered": (model.path / ARTIFACTS / "recover.json").is_file(),
    }


def vocabulary_size(model: Checkpoint) -> int | None:
    """The vocabulary size by the config, which is the perplexity of guessing; None if unknown."""
    text_config = model.config.get("text_config")
    for config in (model.config, text_config if isinstance(text_config, dict) else {}):
        if type(config.get("vocab_size")) is int:
            return int(config["vocab_size"])
    return None


def read_seen_texts(model: Checkpoint) -> list[SeenText]:
    """The texts that a cut was calibrated and trained on; invalid entries are left out."""
    plan, refit = _read_record(model, "plan.json"), _read_record(model, "refit.json")
    recover, trim = _read_record(model, "recover.json"), _read_record(model, "trim.json")
    calibrated = [
        *_dict_entries(_nested_field(plan, "lineage", "statistics", "data")),
        *_dict_entries(_nested_field(refit, "statistics", "data")),
    ]
    trained = []
    for entry in _dict_entries([recover.get("data")]):
        trained.append({**entry, "text": recover.get("text")})
    decision_end = trim.get("measured_from")  # up to here the text served to choose a shape
    if type(decision_end) is not int:
        decision_end = 0
    texts = []
    for entry in [*calibrated, *trained]:
        text = _parse_seen_text(entry, decision_end if entry in calibrated else 0)
        if text is not None:
            texts.append(text)
    return texts


def _read_record(model: Checkpoint, name: str) -> dict[str, Any]:
    """A JSON record of the checkpoint; empty if it is missing or cannot be read."""
    if not (model.path / ARTIFACTS / name).is_file():
        return {}
    try:
        return read_json(path_inside(model.path, f"{ARTIFACTS}/{name}"), MAX_RECORD_BYTES)
    except StatetrimError:
        return {}


def _nested_field(record: Any, *names: str) -> Any:
    """The value at a path of names; None if a level is missing or not a mapping."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _dict_entries(value: Any) -> list[dict[str, Any]]:
    """The mappings in a list; empty if `value` is not a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _parse_seen_text(entry: dict[str, Any], end: int) -> SeenText | None:
    """Text up to its last token, or up to `end` if that is later; None for generated sequences,
    which have no text, and for invalid entries."""
    text, digest = entry.get("text"), entry.get("digest")
    skip, length, count = entry.get("skip"), entry.get("length"), entry.get("count")
    if not isinstance(text, str) or not isinstance(digest, str):
        return None
    if type(skip) is not int or type(length) is not int or type(count) is not int:
        return None
    if skip < 0 or length < 2 or count < 1:
        return None
    return SeenText(text, skip, length, count, digest, max(end, skip + count * length))
