"""The README.md of a pruned checkpoint: what was cut, from what, and how."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..geometry import Geometry
from ..storage.checkpoint import Checkpoint
from .plan import Plan
from .scores import Scores
from .verdicts import verdicts

_MEASURED = "<!-- measured by statetrim -->"
_CARRIED = ("license", "license_name", "license_link", "language", "pipeline_tag", "library_name")


def model_card(
    model: Checkpoint, plan: Plan, after: Geometry, parameters: int, original: str
) -> str:
    """Front matter with the original's licence, then the cut in a table.

    `after` and `parameters` are the cut model's; `original` is the beginning of `model`'s card.
    """
    before = model.geometry
    name, base = _source(model.path.resolve())
    front = [*_carried(original), *base, "tags:", "- statetrim", "- pruned"]
    lines = [
        "---",
        *front,
        "---",
        "",
        f"# {name}, state {before.head_k_dim} x {before.head_v_dim} -> "
        f"{after.head_k_dim} x {after.head_v_dim}",
        "",
        f"This is `{name}` with a smaller recurrent state. In each of its {len(after.layers)} "
        f"linear-attention layers, {_kept(before, after)}; the heads keep different ones. "
        + (
            "The weight of the output norm was multiplied into the output projection. "
            if plan.kept_values is not None
            else ""
        )
        + "All other tensors are the original's, byte for byte. It loads in stock libraries; no "
        "code of statetrim is needed.",
        "",
        "| | before | after |",
        "|---|---:|---:|",
        f"| key channels per head | {before.head_k_dim} | {after.head_k_dim} |",
        f"| value channels per head | {before.head_v_dim} | {after.head_v_dim} |",
        f"| recurrent state per sequence, float32 | {_mib(before.state_numel)} | "
        f"{_mib(after.state_numel)} |",
        f"| parameters | {model.parameters:,} | {parameters:,} |",
        "",
        f"{' '.join(_chosen(plan))} The kept "
        f"channels of every head are in `statetrim/plan.json`. A cut loses quality unless it was "
        f"measured not to: evaluate before use.",
    ]
    if original:
        lines += ["", "The original model card is `statetrim/source_README.md`."]
    return "\n".join(lines) + "\n"


def with_measurements(card: str, scores: Scores) -> str:
    """The card with what was measured at its end; a second time it takes the place of the first."""
    lines = [
        _MEASURED,
        "",
        "## Measured",
        "",
        "| task | metric | " + " | ".join(scores.models) + " |",
    ]
    lines.append("|---|---|" + "---:|" * len(scores.models))
    for task in scores.tasks:
        for metric in scores.metrics(task):
            cells = [f"{scores.find(model, task, metric).value:.4g}" for model in scores.models]
            lines.append(f"| {task} | {metric} | {' | '.join(cells)} |")
    lines += ["", "Against the original, on the same samples (95% intervals, paired):", ""]
    lines += [f"- {v.task}, {v.metric}, {v.model}: {v.sentence}" for v in verdicts(scores)]
    return card.partition(_MEASURED)[0].rstrip() + "\n\n" + "\n".join(lines) + "\n"


def recovered_card(original: str, name: str, record: Mapping[str, Any]) -> str:
    """The card of the model that was recovered, with what was done to it added at the end."""
    options, coverage = record["options"], record["coverage"]
    first, last = record["curve"][0], record["curve"][-1]
    teacher = (
        "distilled from the original model" if record["teacher"] else "trained without a teacher"
    )
    how = "one mixer at a time, " if options["layerwise"] else ""
    lines = [
        original.rstrip() or f"# {name}",
        "",
        "## Recovery",
        "",
        f"This checkpoint was then {teacher}, {how}with `statetrim recover`: "
        f"{last['tokens']:,} tokens, LoRA of rank {options['rank']} on {coverage['projections']} "
        f"projections of {coverage['layers']} linear-attention layers, {coverage['convolutions']} "
        f"convolutions trained whole; merged into the weights. All other tensors are unchanged, "
        f"byte for byte. The loss went from {first['loss']:.4g} to {last['loss']:.4g}; the whole "
        f"curve is in `statetrim/recover.json`.",
    ]
    return "\n".join(lines) + "\n"


def refitted_card(original: str, name: str, record: Mapping[str, Any]) -> str:
    """The card of the model that was refitted, with what was done to it added at the end."""
    layers = record["layers"].values()
    before, after = (max(layer[when] for layer in layers) for when in ("before", "after"))
    lines = [
        original.rstrip() or f"# {name}",
        "",
        "## Refit",
        "",
        f"The output projections of its {len(layers)} linear-attention layers were then fitted "
        f"anew to the original model's layer outputs, in closed form, with `statetrim refit`. The "
        f"worst layer missed {before:.1%} of its output's squares before, {after:.1%} after, on "
        f"the text of the fit; all layers are in `statetrim/refit.json`. All other tensors are "
        f"unchanged, byte for byte.",
    ]
    return "\n".join(lines) + "\n"


def _kept(before: Geometry, after: Geometry) -> str:
    """What every head keeps, of the axes that were cut."""
    axes = (
        ("key", "key/query", before.head_k_dim, after.head_k_dim),
        ("value", "value", before.head_v_dim, after.head_v_dim),
    )
    return " and ".join(
        f"every {head} head keeps {new} of {old} {channels} channels"
        for head, channels, old, new in axes
        if new != old
    )


def _chosen(plan: Plan) -> Iterator[str]:
    """A sentence for each axis that a method chose channels of."""
    by = [("Channels", plan.method, plan.options)]
    if plan.value_method is not None:
        keys = [("Key channels", plan.method, plan.options)] if plan.method != "none" else []
        by = [*keys, ("Value channels", plan.value_method, plan.value_options)]
    for what, method, options in by:
        text = ", ".join(f"{key}={value}" for key, value in options.items()) or "none"
        yield f"{what} were chosen by `{method}` (options: {text}; seed {plan.seed})."


def _source(path: Path) -> tuple[str, list[str]]:
    """The model's name, and front matter that links to it where it came from the hub's cache."""
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        hub_id = path.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        return hub_id, [f"base_model: {hub_id}"]
    return path.name, []


def _carried(original: str) -> list[str]:
    """One-line fields of the original's front matter that still hold."""
    match = re.match(r"---\n(.*?)\n---\n", original, flags=re.DOTALL)
    lines = match.group(1).splitlines() if match else []
    return [
        line
        for line in lines
        if (field := re.match(r"([a-z_]+): *\S", line)) and field.group(1) in _CARRIED
    ]


def _mib(numel: int) -> str:
    return f"{numel * 4 / 2**20:.1f} MiB"
