"""How it came about: training after the cut, commands, lineage."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ...maths.units import is_number
from ..charts import Point, Series, line_chart
from ..document import Block, Command, Picture, Table, Text
from ..findings import Findings
from .wording import brief, dicts, mapping, missing, thinned


def recovered(found: Findings) -> Iterator[Block]:
    if found.refit is not None:
        yield from _refitted(found.refit)
    record = found.recovery
    if record is None:
        yield from missing(
            "No training followed the cut.",
            "statetrim recover SMALL --teacher MODEL --text text.jsonl -o RECOVERED",
        )
        return
    options = mapping(record.get("options"))
    yield Table(("", "recovery"), [(str(name), str(value)) for name, value in options.items()])
    curve = [p for p in dicts(record.get("curve")) if is_number(p.get("step"))]
    names = [n for n in ("loss", "ce", "kl") if curve and all(is_number(p.get(n)) for p in curve)]
    series = [
        Series(
            name,
            thinned([Point(float(p["step"]), float(p[name])) for p in curve]),
        )
        for name in names
    ]
    chart = line_chart(series, "Loss by training step", x="step", y="nats per token")
    if chart:
        yield Picture(chart, "Loss while training after the cut, in nats per token.")
        yield Table(
            ("", *names),
            [
                (when, *(f"{float(point[name]):.4f}" for name in names))
                for when, point in (("first", curve[0]), ("last", curve[-1]))
            ],
        )


def _refitted(record: Mapping[str, Any]) -> Iterator[Block]:
    layers = {
        str(layer): {str(k): v for k, v in mapping(errors).items() if is_number(v)}
        for layer, errors in mapping(record.get("layers")).items()
    }
    names = list(dict.fromkeys(name for errors in layers.values() for name in errors))
    yield Text("The output projections were fitted anew to the original's layer outputs.")
    if names:
        yield Table(
            ("layer", *(name.replace("_", " ") for name in names)),
            [
                (layer, *(f"{errors[n]:.4g}" if n in errors else "" for n in names))
                for layer, errors in layers.items()
            ],
            caption="Errors of the refit by layer",
            folded=True,
        )


def reproduce(found: Findings) -> Iterator[Block]:
    plan = found.plan
    if plan is None:
        yield Text("Without a plan there is nothing to say how this was made.", "missing")
        return
    heard = mapping(plan.lineage.get("statistics"))
    lines = []
    methods = ",".join(m for m in (plan.method, plan.value_method) if m and m != "none")
    for data in dicts(heard.get("data")):
        count, length = data.get("count"), data.get("length")
        if type(count) is int and type(length) is int and max(count, length) < 2**63:
            lines.append(
                f"statetrim calibrate MODEL --text {_quoted(data.get('text'))} --tokens "
                f"{count * length} --length {length} --skip {_quoted(data.get('skip'))} "
                f"--batch-size {_quoted(heard.get('batch_size'))} --for {_quoted(methods)} "
                f"-o statistics.safetensors"
            )
    choice = ""
    if plan.method != "none":
        choice += f" --keep {_quoted(plan.requested)} --method {_quoted(plan.method)}"
        choice += _options("--option", plan.options)
    if plan.requested_values is not None:
        choice += f" --keep-values {_quoted(plan.requested_values)}"
        choice += f" --value-method {_quoted(plan.value_method)}"
        choice += _options("--value-option", plan.value_options)
    statistics = " --statistics statistics.safetensors" if heard else ""
    lines.append(f"statetrim select MODEL{choice} --seed {plan.seed}{statistics} -o plan.json")
    lines.append("statetrim prune MODEL plan.json -o SMALL")
    yield Text(
        f"MODEL is the original checkpoint (digest {brief(plan.lineage.get('source'))}). The same "
        f"model, text and options give the same plan, and the same plan the same bytes."
    )
    yield Command(lines)


def lineage(found: Findings) -> Iterator[Block]:
    records: dict[str, Mapping[str, Any]] = {}
    if found.plan:
        records["plan"] = found.plan.lineage
    if found.analysis:
        records["analysis"] = found.analysis.lineage
    for name in ("scores", "timings", "sweep"):
        if getattr(found, name):
            records[name] = mapping(getattr(found, name).lineage)
    for name in ("prune", "refit", "trim", "recovery"):
        if getattr(found, name):
            records[name] = getattr(found, name)
    rows = [
        (
            name,
            found.sources.get(name, ""),
            brief(record.get("statetrim")),
            brief(record.get("source") or record.get("student") or record.get("baseline")),
        )
        for name, record in records.items()
    ]
    rows += [
        (f"checkpoint {name}", found.sources[name], "", brief(model.digest))
        for name, model in (("before", found.before), ("after", found.after))
        if model is not None and model.shards
    ]
    yield Table(("artifact", "file", "statetrim", "model digest"), rows)


def _quoted(value: Any) -> str:
    return shlex.quote(" ".join(str(value).split()))


def _options(flag: str, options: Mapping[str, Any]) -> str:
    return "".join(
        f" {flag} {_quoted(f'{name}={_option(value)}')}" for name, value in options.items()
    )


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
