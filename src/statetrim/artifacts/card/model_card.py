"""The README.md of a pruned checkpoint: what was cut, from what, how, and what it costs."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...families.contract import WIDTHS
from ...geometry import Geometry
from ...maths.formatting import change, score_text, size
from ...storage.checkpoint import Checkpoint
from ...storage.hub.cache import model_name, repository_in_cache
from ..losses import averaged, headline, losses
from ..plan import Plan
from ..scores import Scores
from ..verdict import Verdict
from .markdown import code, one_line, plain

_MEASURED, _END = "<!-- measured by statetrim -->", "<!-- end of what was measured -->"
_CARRIED = ("license", "license_name", "license_link", "language", "pipeline_tag", "library_name")
_VALUE = re.compile(
    r"[\w./:+-][\w ./:+-]*|\[[\w, -]*\]"
)  # what YAML reads as plain text, or a list
_FLOAT32, _BFLOAT16 = 4, 2
_UNCHANGED = "All other tensors are the original's, byte for byte."
_COPIED = "The cut copied all other tensors byte for byte; the steps below changed some of them."


def model_card(
    model: Checkpoint, plan: Plan, after: Geometry, parameters: int, original: str
) -> str:
    """Front matter with the original's licence, the cut in a table, then how it was made.

    `after` and `parameters` are the cut model's; `original` is the beginning of `model`'s card.
    """
    before = model.geometry
    name, base = _source(model.path.resolve())
    front = [*_carried(original), *base, "tags:", "- statetrim", "- pruned"]
    shapes = [before.describe_against(after), after.describe_against(before)]
    loads = (
        f"**Stock libraries cannot load it**: its layers differ in width (`{WIDTHS}` in its "
        f"config). `statetrim.load` runs it, and vLLM with the plugin of statetrim."
        if after.widths
        else "It loads in stock libraries; no code of statetrim is needed."
    )
    lines = [
        "---",
        *front,
        "---",
        "",
        f"# {plain(name)}, state {shapes[0]} -> {shapes[1]}",
        "",
        f"This is {code(name)} with a smaller recurrent state. In each of its {len(after.layers)} "
        f"linear-attention layers, {_kept(before, after)}. {loads}",
        "",
        "| | before | after | change |",
        "|---|---:|---:|---:|",
        f"| state of a head, keys x values | {shapes[0]} | {shapes[1]} | "
        f"{change(before.state_numel, after.state_numel)} |",
        _bytes("recurrent state per sequence, float32", before, after, _FLOAT32),
        _bytes("the same in bfloat16 (an engine option)", before, after, _BFLOAT16),
        f"| parameters | {model.parameters:,} | {parameters:,} | "
        f"{change(model.parameters, parameters)} |",
        "",
        _MEASURED,
        "Its quality was not measured yet. A cut loses quality unless it was measured not to: "
        "evaluate before use.",
        _END,
        "",
        "## How it was made",
        "",
        f"{' '.join(_chosen(plan))} The kept {_what(plan)} are in `statetrim/plan.json`. "
        + (
            "The weight of the output norm was multiplied into the output projection. "
            if plan.kept_values is not None
            else ""
        )
        + _UNCHANGED,
    ]
    if original:
        lines += ["", "The original model card is `statetrim/source_README.md`."]
    return "\n".join(lines) + "\n"


def with_measurements(card: str, scores: Scores, judged: Verdict) -> str:
    """The card with the verdict, its warnings and what was measured, above how it was made; a
    second time it takes the place of the first."""
    lines = [
        _MEASURED,
        "## Measured",
        "",
        f"**{str(judged.outcome).capitalize()}**: {plain(judged.reason)}.",
        "",
        *(f"- Warning: {plain(text)}." for text in judged.warnings),
        *([""] if judged.warnings else []),
        f"| task | metric | samples | {' | '.join(map(plain, scores.models))} |",
        "|---|---|---:|" + "---:|" * len(scores.models),
    ]
    for task in scores.tasks:
        for metric in scores.metrics(task):
            found = [headline(scores, model, task, metric) for model in scores.models]
            cells = [score_text(score.value, score.unit) for score in found]
            count = len(found[0].samples)
            mean = averaged(scores, task, metric)
            name = f"{metric} ({mean})" if mean else metric
            row = [plain(task), plain(name), str(count), *cells]
            lines.append(f"| {' | '.join(row)} |")
    lines += [
        "",
        "Against the original, on the same samples (95% intervals, paired; losses are positive):",
        "",
    ]
    lines += [
        f"- {plain(x.task)}, {plain(x.metric)}, {plain(model)}: {x.sentence}"
        for model in scores.models[1:]
        for x in losses(scores, model)
    ]
    lines.append(_END)
    before, rest = _around_measurements(card)
    return f"{before.rstrip()}\n\n" + "\n".join(lines) + f"\n\n{rest.lstrip()}"


def _around_measurements(card: str) -> tuple[str, str]:
    """What stands before the measurements and after them."""
    before, begun, rest = card.partition(_MEASURED)
    if not begun:
        return card, ""
    return before, rest.partition(_END)[2]


def _before_training(card: str) -> str:
    """The weights are about to change: what was measured of them holds no longer, nor that all but
    the cut ones are the original's."""
    card = card.replace(_UNCHANGED, _COPIED)
    before, rest = _around_measurements(card)
    if not rest:
        return card.rstrip()
    again = f"{_MEASURED}\nIts quality was not measured since: evaluate before use.\n{_END}"
    return f"{before.rstrip()}\n\n{again}\n\n{rest.strip()}"


def recovered_card(original: str, name: str, record: Mapping[str, Any]) -> str:
    """The card of the model that was recovered, with what was done to it added at the end."""
    options, coverage = record["options"], record["coverage"]
    first, last = record["curve"][0], record["curve"][-1]
    teacher = (
        "distilled from the original model" if record["teacher"] else "trained without a teacher"
    )
    how = "one mixer at a time, " if options["layerwise"] else ""
    what = (
        f"all weights of {coverage['layers']} linear-attention layers"
        if options.get("whole")
        else f"LoRA of rank {options['rank']} on {coverage['projections']} projections of "
        f"{coverage['layers']} linear-attention layers, {coverage['convolutions']} convolutions "
        f"trained whole; merged into the weights"
    )
    recall = options.get("recall", 0)
    made = f" ({recall:.0%} of them recall sequences)" if recall else ""
    lines = [
        _before_training(original) or f"# {plain(name)}",
        "",
        "## Recovery",
        "",
        f"This checkpoint was then {teacher}, {how}with `statetrim recover`: "
        f"{last['tokens']:,} tokens{made}, {what}. Recovery copied all other tensors byte for "
        f"byte. The loss went from {first['loss']:.4g} to {last['loss']:.4g}; the whole curve is "
        f"in `statetrim/recover.json`.",
    ]
    return "\n".join(lines) + "\n"


def refitted_card(original: str, name: str, record: Mapping[str, Any]) -> str:
    """The card of the model that was refitted, with what was done to it added at the end."""
    layers = record["layers"].values()
    before, after = (max(layer[when] for layer in layers) for when in ("before", "after"))
    lines = [
        _before_training(original) or f"# {plain(name)}",
        "",
        "## Refit",
        "",
        f"The output projections of its {len(layers)} linear-attention layers were then "
        f"refitted to the original model's layer outputs, in closed form, with `statetrim refit`. "
        f"The worst layer missed {before:.1%} of its output's squares before, {after:.1%} after, "
        f"on the text of the fit; all layers are in `statetrim/refit.json`. The refit "
        f"copied all other tensors byte for byte.",
    ]
    return "\n".join(lines) + "\n"


def _kept(before: Geometry, after: Geometry) -> str:
    """What every head keeps, of the axes that were cut; or which heads stay."""
    if before.num_v_heads != after.num_v_heads:
        devices = ", ".join(map(str, after.tensor_parallel))
        return (
            f"{after.num_v_heads} of {before.num_v_heads} value heads and {after.num_k_heads} of "
            f"{before.num_k_heads} key heads stay, whole (tensor parallelism over {devices} "
            f"devices). Whole heads cost more than channels of as many bytes wherever both were "
            f"measured, except where value heads share a key head"
        )
    axes = (
        ("key", "key/query", before.head_k_dim, _range(after, 0)),
        ("value", "value", before.head_v_dim, _range(after, 1)),
    )
    kept = " and ".join(
        f"every {head} head keeps {new} of {old} {channels} channels"
        for head, channels, old, new in axes
        if new != str(old)
    )
    return f"{kept}; the heads keep different ones"


def _what(plan: Plan) -> str:
    return "channels of every head" if plan.kept_heads is None else "heads of every layer"


def _range(geometry: Geometry, axis: int) -> str:
    """Channels of a head along an axis, from the narrowest layer to the widest."""
    widths = {shape[axis] for shape in geometry.shapes.values()}
    return str(min(widths)) if len(widths) == 1 else f"{min(widths)} to {max(widths)}"


def _chosen(plan: Plan) -> Iterator[str]:
    """A sentence for each axis that a method chose channels of."""
    by = [("Channels", plan.method, plan.options)]
    if plan.head_method is not None:
        by = [("Heads", plan.head_method, {})]
    if plan.value_method is not None:
        keys = [("Key channels", plan.method, plan.options)] if plan.method != "none" else []
        by = [*keys, ("Value channels", plan.value_method, plan.value_options)]
    for what, method, options in by:
        text = ", ".join(code(f"{key}={value}") for key, value in options.items()) or "none"
        yield f"{what} were chosen by {code(method)} (options: {text}; seed {plan.seed})."


def _source(path: Path) -> tuple[str, list[str]]:
    """The model's name, and front matter that links to it where it came from the hub's cache."""
    name = model_name(path)
    if repository_in_cache(path) is None:
        return one_line(name), []
    safe = re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    return one_line(name), [f"base_model: {name if safe else json.dumps(name)}"]


def _carried(original: str) -> list[str]:
    """One-line fields of the original's front matter that still hold, where they are plain."""
    match = re.match(r"---\n(.*?)\n---\n", original, flags=re.DOTALL)
    fields = (line.partition(":") for line in (match.group(1).splitlines() if match else []))
    return [
        f"{name}: {value.strip()}"
        for name, _, value in fields
        if name in _CARRIED and _VALUE.fullmatch(value.strip())
    ]


def _bytes(name: str, before: Geometry, after: Geometry, width: int) -> str:
    old, new = (width * x.state_numel for x in (before, after))
    return f"| {name} | {size(old)} | {size(new)} | {change(old, new)} |"
