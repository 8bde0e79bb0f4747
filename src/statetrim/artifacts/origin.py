"""How a checkpoint was made, as its own records, which are untrusted, state it."""

from dataclasses import dataclass
from typing import Any

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.output import ARTIFACTS
from .plan import Plan
from .steps import DataSource, RecoverRecord, RefitRecord, TrimRecord, data_sources


@dataclass(frozen=True)
class SeenText:
    """Text that a cut was calibrated or trained on. All tokens before `end` count as seen."""

    source: DataSource
    end: int


def read_origin(model: Checkpoint, original: Checkpoint) -> dict[str, Any] | None:
    """The digest of the model that `model` was cut from ("source"), the names of its "methods", and
    whether it was trained after the cut ("recovered"); None for a model that was not cut.

    A digest of `original` in the form of an earlier version is replaced by today's. If the plan
    cannot be read, the source is None and there are no methods.
    """
    if not (model.path / ARTIFACTS / "plan.json").is_file():
        return None
    plan = _plan_fields(model)
    source = _plan_lineage(plan).get("source")
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
    refit, recover = RefitRecord.of_model(model), RecoverRecord.of_model(model)
    statistics = _plan_lineage(_plan_fields(model)).get("statistics")
    chosen_until = TrimRecord.of_model(model).measured_from
    seen = []
    for source in [*data_sources(statistics), *data_sources(refit.statistics)]:
        seen.append(SeenText(source, max(chosen_until, source.skip + source.tokens)))
    for source in data_sources({"data": [{**recover.data, "text": recover.text}]}):
        seen.append(SeenText(source, source.skip + source.tokens))
    return [item for item in seen if item.source.text is not None]


def _plan_fields(model: Checkpoint) -> dict[str, Any]:
    """The fields of a cut's plan, whose types are not checked; empty if it cannot be read."""
    try:
        return Plan.read_fields(path_inside(model.path, f"{ARTIFACTS}/plan.json"))
    except StatetrimError:
        return {}


def _plan_lineage(plan: dict[str, Any]) -> dict[str, Any]:
    lineage = plan.get("lineage")
    return lineage if isinstance(lineage, dict) else {}
