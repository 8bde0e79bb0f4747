"""What a checkpoint's own records say of how it came about."""

from dataclasses import dataclass
from typing import Any

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.json_file import read_json
from ..storage.output import ARTIFACTS, MAX_RECORD_BYTES
from .plan import MAX_PLAN_BYTES

_RECORDS = ("plan", "refit", "recover", "trim")


@dataclass(frozen=True)
class SeenText:
    """`count` sequences of `length` tokens after `skip`, and their digest; all before `end` counts
    as seen."""

    text: str
    skip: int
    length: int
    count: int
    digest: str
    end: int


def read_origin(model: Checkpoint, original: Checkpoint) -> dict[str, Any] | None:
    """Digest of the model it was cut from, the methods, and whether it was trained since; None for
    a model that was not cut. Records are not trusted with more than that.

    `original` has one digest, whatever an earlier version called it."""
    if not (model.path / ARTIFACTS / "plan.json").is_file():
        return None
    try:
        plan = read_json(path_inside(model.path, f"{ARTIFACTS}/plan.json"), MAX_PLAN_BYTES)
    except StatetrimError:
        return {"source": None, "methods": [], "recovered": False}
    lineage = plan.get("lineage")
    source = lineage.get("source") if isinstance(lineage, dict) else None
    methods = [plan.get("method"), plan.get("value_method")]
    return {
        "source": original.digest if original.has_digest(source) else source,
        "methods": [name for name in methods if isinstance(name, str) and name != "none"],
        "recovered": (model.path / ARTIFACTS / "recover.json").is_file(),
    }


def vocabulary_size(model: Checkpoint) -> int | None:
    """Tokens that the model chooses from: the perplexity of guessing."""
    text_config = model.config.get("text_config")
    for config in (model.config, text_config if isinstance(text_config, dict) else {}):
        if type(config.get("vocab_size")) is int:
            return int(config["vocab_size"])
    return None


def read_seen_texts(model: Checkpoint) -> list[SeenText]:
    """The text that a cut was calibrated and trained on. Its records are not trusted: an entry that
    is not sound is left out."""
    plan, refit, recover, trim = (_read_record(model, f"{name}.json") for name in _RECORDS)
    calibrated = [
        *_dict_entries(_nested_field(plan, "lineage", "statistics", "data")),
        *_dict_entries(_nested_field(refit, "statistics", "data")),
    ]
    trained = [
        {**entry, "text": recover.get("text")} for entry in _dict_entries([recover.get("data")])
    ]
    decision_start = trim.get("measured_from")  # the text that decided between shapes follows
    texts = [
        _parse_seen_text(
            entry, decision_start if type(decision_start) is int and entry in calibrated else 0
        )
        for entry in [*calibrated, *trained]
    ]
    return [entry for entry in texts if entry is not None]


def _read_record(model: Checkpoint, name: str) -> dict[str, Any]:
    if not (model.path / ARTIFACTS / name).is_file():
        return {}
    try:
        return read_json(path_inside(model.path, f"{ARTIFACTS}/{name}"), MAX_RECORD_BYTES)
    except StatetrimError:
        return {}


def _nested_field(record: Any, *names: str) -> Any:
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _dict_entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _parse_seen_text(entry: dict[str, Any], end: int) -> SeenText | None:
    """None for sequences that were generated."""
    text, digest = entry.get("text"), entry.get("digest")
    skip, length, count = (entry.get(name) for name in ("skip", "length", "count"))
    if not isinstance(text, str) or not isinstance(digest, str):
        return None
    if type(skip) is not int or type(length) is not int or type(count) is not int:
        return None
    if skip < 0 or length < 2 or count < 1:
        return None
    return SeenText(text, skip, length, count, digest, max(end, skip + count * length))
