"""What a checkpoint's own records say of how it came about."""

from dataclasses import dataclass
from typing import Any

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, inside
from ..storage.json_file import read_object
from ..storage.output import ARTIFACTS, MOST_RECORD_BYTES
from .plan import MOST_PLAN_BYTES

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


def origin(model: Checkpoint, original: Checkpoint) -> dict[str, Any] | None:
    """Digest of the model it was cut from, the methods, and whether it was trained since; None for
    a model that was not cut. Records are not trusted with more than that.

    `original` has one digest, whatever an earlier version called it."""
    if not (model.path / ARTIFACTS / "plan.json").is_file():
        return None
    try:
        plan = read_object(inside(model.path, f"{ARTIFACTS}/plan.json"), MOST_PLAN_BYTES)
    except StatetrimError:
        return {"source": None, "methods": [], "recovered": False}
    lineage = plan.get("lineage")
    source = lineage.get("source") if isinstance(lineage, dict) else None
    methods = [plan.get("method"), plan.get("value_method")]
    return {
        "source": original.digest if original.is_source(source) else source,
        "methods": [name for name in methods if isinstance(name, str) and name != "none"],
        "recovered": (model.path / ARTIFACTS / "recover.json").is_file(),
    }


def vocabulary(model: Checkpoint) -> int | None:
    """Tokens that the model chooses from: the perplexity of guessing."""
    text = model.config.get("text_config")
    for config in (model.config, text if isinstance(text, dict) else {}):
        if type(config.get("vocab_size")) is int:
            return int(config["vocab_size"])
    return None


def seen_texts(model: Checkpoint) -> list[SeenText]:
    """The text that a cut was calibrated and trained on. Its records are not trusted: an entry that
    is not sound is left out."""
    plan, refit, recover, trim = (_record(model, f"{name}.json") for name in _RECORDS)
    calibrated = [
        *_entries(_at(plan, "lineage", "statistics", "data")),
        *_entries(_at(refit, "statistics", "data")),
    ]
    trained = [{**one, "text": recover.get("text")} for one in _entries([recover.get("data")])]
    chosen = trim.get("measured_from")  # the text that decided between shapes follows
    found = [
        _seen(one, chosen if type(chosen) is int and one in calibrated else 0)
        for one in [*calibrated, *trained]
    ]
    return [one for one in found if one is not None]


def _record(model: Checkpoint, name: str) -> dict[str, Any]:
    if not (model.path / ARTIFACTS / name).is_file():
        return {}
    try:
        return read_object(inside(model.path, f"{ARTIFACTS}/{name}"), MOST_RECORD_BYTES)
    except StatetrimError:
        return {}


def _at(record: Any, *names: str) -> Any:
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _entries(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _seen(entry: dict[str, Any], end: int) -> SeenText | None:
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
