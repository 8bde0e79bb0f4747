"""The model card (README.md) of a cut: the original, the method and the sizes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cut.geometry import Geometry
from ...cut.shape import Axis
from ...families.contract import LAYER_WIDTHS_FIELD
from ...maths.formatting import change_row, lowest_to_highest
from ...storage.checkpoint import Checkpoint
from ...storage.checkpoint_files import model_name, repository_in_cache
from ...storage.quantized.find import describe_schemes
from ..plan import Plan
from ..state_sizes import state_rows
from .markdown import escape, inline_code, one_line, table_lines

_MEASURED_BEGIN = "<!-- measured by statetrim -->"
_MEASURED_END = "<!-- end of what was measured -->"
_LICENSE_FIELDS = ("license", "license_name", "license_link")
_CARRIED_FIELDS = (*_LICENSE_FIELDS, "language", "pipeline_tag", "library_name")
_PLAIN_YAML_VALUE = re.compile(r"[\w./:+-][\w ./:+-]*|\[[\w, -]*\]")  # a plain scalar or a list
_UNCHANGED = "All other tensors are the original's, byte for byte."
_COPIED = "The cut copied all other tensors byte for byte; the steps below changed some of them."


def model_card(
    model: Checkpoint, plan: Plan, after: Geometry, parameters: int, original: str
) -> str:
    """The card of a new cut: front matter with the original's licence, sizes, how it was made.

    `model` is the original; `after` and `parameters` (their number) are the cut's; `original` is
    the beginning of the original's card, empty if it has none.
    """
    before = model.geometry
    name, base = _name_and_base(model.path.resolve())
    front_matter = [*_carried_fields(original), *base, "tags:", "- statetrim", "- pruned"]
    sizes = state_rows(before, after)
    _, *shapes, _ = sizes[0]
    sizes.append(change_row("parameters", model.parameters, parameters, ""))
    loading_text = (
        f"**Stock libraries cannot load it**: its layers differ in width (`{LAYER_WIDTHS_FIELD}` "
        "in its config). `statetrim.load` runs it. vLLM, which then stores wide layers in parts, "
        "and MLX-LM run Qwen3-Next and Qwen3.5 with the plugins of statetrim."
        if after.widths
        else "It loads in stock libraries; no code of statetrim is needed."
    )
    nouns = ["heads of every layer"] if "head" in plan.axes else []
    nouns += ["channels of every head"] if plan.axes.keys() & {"key", "value"} else []
    folded = ""
    if "value" in plan.axes:
        folded = "The weight of the output norm was multiplied into the output projection. "
    lines = [
        "---",
        *front_matter,
        "---",
        "",
        f"# {escape(name)}, state {shapes[0]} -> {shapes[1]}",
        "",
        f"This is {inline_code(name)} with a smaller recurrent state. In each of its "
        f"{len(after.layers)} linear-attention layers, {_kept_text(before, after)}. {loading_text}",
        "",
        *table_lines(("", "before", "after", "change"), sizes),
        "",
        _MEASURED_BEGIN,
        "Its quality was not measured yet. A cut loses quality unless it was measured not to: "
        "evaluate before use.",
        _MEASURED_END,
        "",
        "## How it was made",
        "",
        f"{' '.join(_method_sentences(plan))} The kept {' and '.join(nouns)} are in "
        f"`statetrim/plan.json`. {folded}{_quantized_text(model)}{_UNCHANGED}",
    ]
    if original:
        lines += ["", "The original model card is `statetrim/source_README.md`."]
    return "\n".join(lines) + "\n"


def with_measured_section(card: str, lines: Sequence[str]) -> str:
    """The card with `lines` above how the cut was made; they replace earlier measurements."""
    before, after = _around_measurements(card)
    section = "\n".join([_MEASURED_BEGIN, *lines, _MEASURED_END])
    return f"{before.rstrip()}\n\n{section}\n\n{after.lstrip()}"


def _around_measurements(card: str) -> tuple[str, str]:
    """The card before and after the measurements; all of it and "" if it has none."""
    before, _, after = card.partition(_MEASURED_BEGIN)
    return before, after.partition(_MEASURED_END)[2]


def _with_step(card: str, name: str, section: str) -> str:
    """The card with a section on a step that changed weights: without its measurements, and without
    the claim that all other tensors are the original's."""
    card = card.replace(_UNCHANGED, _COPIED)
    if _around_measurements(card)[1]:
        notice = "Its quality was not measured since: evaluate before use."
        card = with_measured_section(card, [notice])
    return f"{card.rstrip() or f'# {escape(name)}'}\n\n{section}\n"


def recovered_card(original: str, name: str, record: Mapping[str, Any]) -> str:
    """`original`, the card of the cut, with a section on its recovery from the record."""
    options, coverage = record["options"], record["coverage"]
    first, last = record["curve"][0], record["curve"][-1]
    teacher = "trained without a teacher"
    if record["teacher"]:
        teacher = "distilled from the original model"
    layerwise_text = "one mixer at a time, " if options["layerwise"] else ""
    trained_text = (
        f"all weights of {coverage['layers']} linear-attention layers"
        if options.get("whole")
        else f"LoRA of rank {options['rank']} on {coverage['projections']} projections of "
        f"{coverage['layers']} linear-attention layers, {coverage['convolutions']} convolutions "
        f"trained whole; merged into the weights"
    )
    recall = options.get("recall", 0)
    recall_text = f" ({recall:.0%} of them recall sequences)" if recall else ""
    section = (
        f"## Recovery\n\n"
        f"This checkpoint was then {teacher}, {layerwise_text}with `statetrim recover`: "
        f"{last['tokens']:,} tokens{recall_text}, {trained_text}. Recovery copied all other "
        f"tensors byte for byte. The loss went from {first['loss']:.4g} to {last['loss']:.4g}; the "
        f"whole curve is in `statetrim/recover.json`."
    )
    return _with_step(original, name, section)


def _quantized_text(model: Checkpoint) -> str:
    """How the weights are stored, and where the record of what was quantised again is."""
    if not model.quantized:
        return ""
    schemes = describe_schemes(model.quantized)
    return (
        f"Quantised weights: {schemes}. `statetrim/prune.json` lists those that were quantised "
        f"again for the cut, with their errors, if there are any. "
    )


def refitted_card(original: str, name: str, record: Mapping[str, Any]) -> str:
    """`original`, the card of the cut, with a section on its refit from the record."""
    layers = record["layers"].values()
    before = max(layer["before"] for layer in layers)
    after = max(layer["after"] for layer in layers)
    section = (
        f"## Refit\n\n"
        f"The output projections of its {len(layers)} linear-attention layers were then "
        f"refitted to the original model's layer outputs, in closed form, with `statetrim refit`. "
        f"The relative squared error of the worst layer was {before:.1%} before and {after:.1%} "
        f"after, on the text of the fit; all layers are in `statetrim/refit.json`. The refit "
        f"copied all other tensors byte for byte."
    )
    return _with_step(original, name, section)


def _kept_text(before: Geometry, after: Geometry) -> str:
    """What stays along the axes that were cut."""
    kept = []
    if before.num_v_heads != after.num_v_heads:
        devices = ", ".join(map(str, after.tensor_parallel))
        kept.append(
            f"{after.num_v_heads} of {before.num_v_heads} value heads and {after.num_k_heads} of "
            f"{before.num_k_heads} key heads stay (tensor parallelism over {devices} devices; "
            f"whole heads cost more than channels of as many bytes wherever both were measured, "
            f"except where value heads share a key head)"
        )
    keys, values = (
        lowest_to_highest(widths) for widths in zip(*after.shapes.values(), strict=True)
    )
    if keys != str(before.head_k_dim):
        kept.append(f"every key head keeps {keys} of {before.head_k_dim} key/query channels")
    if values != str(before.head_v_dim):
        kept.append(f"every value head keeps {values} of {before.head_v_dim} value channels")
    choice = "; the heads keep different ones" if before.shapes != after.shapes else ""
    return f"{' and '.join(kept)}{choice}"


def _method_sentences(plan: Plan) -> Iterator[str]:
    """A sentence per axis on the method that chose what is kept along it."""
    subjects: dict[Axis, str] = {
        "head": "Heads", "key": "Key channels", "value": "Value channels"
    }  # fmt: skip
    for axis, chosen in plan.axes.items():
        options = [inline_code(f"{name}={value}") for name, value in chosen.options.items()]
        yield (
            f"{subjects[axis]} were chosen by {inline_code(chosen.method)} "
            f"(options: {', '.join(options) or 'none'}; seed {plan.seed})."
        )


def _name_and_base(path: Path) -> tuple[str, list[str]]:
    """The model's name, and the `base_model` field if it is in the hub's cache."""
    name = model_name(path)
    if repository_in_cache(path) is None:
        return one_line(name), []
    is_plain = re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    return one_line(name), [f"base_model: {name if is_plain else json.dumps(name)}"]


def _carried_fields(original: str) -> list[str]:
    """Fields of the original's front matter that hold for the cut, if on one line and plain."""
    match = re.match(r"---\n(.*?)\n---\n", original, flags=re.DOTALL)
    fields = []
    for line in match.group(1).splitlines() if match else []:
        name, _, value = line.partition(":")
        if name in _CARRIED_FIELDS and _PLAIN_YAML_VALUE.fullmatch(value.strip()):
            fields.append(f"{name}: {value.strip()}")
    return fields
