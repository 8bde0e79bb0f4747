"""What a checkpoint's own records say of how it came about."""

from typing import Any

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, inside
from ..storage.json_file import read_object
from ..storage.output import ARTIFACTS
from .plan import MOST_PLAN_BYTES


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
