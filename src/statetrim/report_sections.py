"""Findings -> the sections of a report. A section without its artifact says how to make it."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from .analysis_file import Analysis
from .charts import Point, Series, bar_chart, bitmap, heat_map, interval_chart, line_chart
from .document import Block, Command, Picture, Section, Table, Text
from .findings import Findings
from .geometry import KERNEL_TILE, Axis, Geometry
from .scores import Score, Scores
from .tasks import TASKS
from .verdicts import Verdict, judge, recall_change

FP32 = 4
GIB = 2**30
MOST_LAYER_PICTURES = 64
MOST_PICTURED_HEADS, MOST_PICTURED_CHANNELS = 64, 1024
MOST_LISTED_HEADS = 64
MOST_CURVE_POINTS = 300


def sections(found: Findings) -> list[Section]:
    """Every section, in the order a reader asks."""
    made = (
        ("What was cut", _cut(found)),
        ("State before and after", _state(found)),
        ("Quality", _quality(found)),
        ("Quality against state size", _sweep(found)),
        ("How full the state is", _ranks(found)),
        ("Speed", _speed(found)),
        ("Where it runs", _engines(found)),
        ("Recovery", _recovery(found)),
        ("How to reproduce it", _reproduce(found)),
        ("Lineage", _lineage(found)),
    )
    return [Section(title, list(blocks)) for title, blocks in made]


def _missing(what: str, *commands: str) -> Iterator[Block]:
    yield Text(what, "missing")
    yield Command(commands)


def _cut(found: Findings) -> Iterator[Block]:
    plan = found.plan
    if plan is None:
        yield from _missing(
            "No plan was given, so this report cannot show which channels went.",
            "statetrim select MODEL --method drrqr --keep 64 --statistics FILE -o plan.json",
        )
        return
    options = ", ".join(f"{name}={value}" for name, value in plan.options.items()) or "none"
    rows = [
        ("method", plan.method),
        ("its options", options),
        ("seed", str(plan.seed)),
        ("asked to keep", plan.requested),
        ("key/query channels kept per head", str(plan.keep)),
    ]
    if plan.keep_values is not None:
        rows.append(("value channels kept per head", str(plan.keep_values)))
    rows.append(("linear-attention layers", str(len(plan.kept))))
    yield Table(("", "the plan"), rows)
    before = found.geometry_before
    tables: list[tuple[Axis, Mapping[int, Tensor]]] = [("key", plan.kept)]
    if plan.kept_values is not None:
        tables.append(("value", plan.kept_values))
    for axis, kept in tables:
        most = max(int(table.max()) for table in kept.values()) + 1
        yield from _kept(axis, kept, before.channels(axis) if before else most)


def _kept(axis: Axis, kept: Mapping[int, Tensor], channels: int) -> Iterator[Block]:
    heads, keep = next(iter(kept.values())).shape
    name = "key/query" if axis == "key" else "value"
    layers = _spread(list(kept), MOST_LAYER_PICTURES)
    if channels <= MOST_PICTURED_CHANNELS:
        pictures = "".join(
            f"<div><p>layer {layer}</p>{_layer_picture(kept[layer], layer, name, channels)}</div>"
            for layer in layers
        )
        shown = "" if len(layers) == len(kept) else f" ({len(layers)} of {len(kept)} layers)"
        yield Picture(
            f'<div class="layers">{pictures}</div>',
            f"Kept {name} channels{shown}: one band a head, from channel 0 on the left to "
            f"{channels - 1} on the right; coloured channels stay ({keep} in every head), gaps "
            f"were removed. Heads are cut apart, so the same place in two heads is not alike.",
        )
    if heads * len(kept) <= MOST_LISTED_HEADS:
        yield Table(
            ("layer", "head", "kept channels"),
            [
                (str(layer), str(head), _ranges(row))
                for layer, table in kept.items()
                for head, row in enumerate(table.tolist())
            ],
            caption=f"Kept {name} channels in numbers",
            folded=True,
        )
    else:
        yield Text("The numbers of all kept channels stand in the plan.")


def _layer_picture(kept: Tensor, layer: int, name: str, channels: int) -> str:
    heads = kept[:MOST_PICTURED_HEADS]
    mask = torch.zeros(len(heads), channels, dtype=torch.bool).scatter_(1, heads, True)
    first = "" if len(heads) == len(kept) else f" (the first {len(heads)})"
    return bitmap(mask, f"Layer {layer}: kept {name} channels of {len(kept)} heads{first}")


def _state(found: Findings) -> Iterator[Block]:
    before, after = found.geometry_before, found.geometry_after
    if after is None or before is None:
        yield from _missing(
            "The sizes before and after need both checkpoints.",
            "statetrim report MODEL SMALL -o report",
        )
        if after is not None:
            yield Table(("", "now"), [row[:2] for row in _sizes(after, after)])
        return
    old, new = (geometry.state_numel * FP32 for geometry in (before, after))
    chart = bar_chart(
        [("before", old, size(old)), ("after", new, size(new))],
        f"Recurrent state of one sequence: {size(old)} before, {size(new)} after",
    )
    yield Picture(chart, "Recurrent state of one sequence, all linear layers together, in fp32.")
    rows = _sizes(before, after)
    if found.before is not None and found.after is not None and found.before.shards:
        weights = [
            sum(tensor.nbytes for _, tensor in model.tensors.values())
            for model in (found.before, found.after)
        ]
        counts = found.before.parameters, found.after.parameters
        rows.append(("parameters", f"{counts[0]:,}", f"{counts[1]:,}", change(*counts)))
        rows.append(("weights on disk", *map(size, weights), change(*weights)))
    yield Table(("", "before", "after", "change"), rows)
    if after.head_k_dim % KERNEL_TILE:
        yield Text(
            f"Kernels pad {after.head_k_dim} key channels to a multiple of {KERNEL_TILE}: memory "
            f"shrinks, time does not.",
            "note",
        )


def _sizes(before: Geometry, after: Geometry) -> list[tuple[str, ...]]:
    def row(name: str, measure: Callable[[Geometry], int], show: Callable[[int], str]) -> Any:
        old, new = measure(before), measure(after)
        return name, show(old), show(new), change(old, new)

    return [
        (
            "state of a head, keys x values",
            f"{before.head_k_dim} x {before.head_v_dim}",
            f"{after.head_k_dim} x {after.head_v_dim}",
            change(before.head_k_dim * before.head_v_dim, after.head_k_dim * after.head_v_dim),
        ),
        row("recurrent state per sequence, fp32", lambda g: g.state_numel * FP32, size),
        row("convolution state per sequence, values", lambda g: g.conv_numel, "{:,}".format),
        row(
            "sequences whose state fits in 16 GiB",
            lambda g: 16 * GIB // (g.state_numel * FP32),
            "{:,}".format,
        ),
    ]


def _quality(found: Findings) -> Iterator[Block]:
    scores = found.scores
    if scores is None or len(scores.models) < 2:
        yield from _missing(
            "Quality was not measured. A cut loses quality; recall suffers before perplexity.",
            "statetrim evaluate SMALL --baseline MODEL --tasks wikitext,squad,mqar --data DATA "
            "-o scores.json",
        )
        return
    judged = list(_judged(scores))
    header = ("task", "metric", "samples", *scores.models)
    yield Text(f"The original is {scores.baseline}. Intervals are of 95%, paired by sample.")
    yield Table((*header, "against the original"), list(_main_rows(scores, judged)))
    for unit, words in (
        ("share", "percentage points lost"),
        ("perplexity", "rise of perplexity, % of the original's"),
        ("nats", "KL from the original, nats per token"),
    ):
        rows = [
            (_case(scores, v), v.loss.estimate, v.loss.low, v.loss.high)
            for v in judged
            if v.unit == unit
        ]
        chart = interval_chart(rows, f"Loss by task with 95% intervals: {words}", words)
        if chart:
            yield Picture(
                chart,
                f"How to read it: a dot is the measured loss, its bar the 95% interval ({words}); "
                f"a bar that touches the dashed zero line is no proven loss. Left is better.",
            )
    for model in scores.models[1:]:
        if all(task in TASKS for task in scores.tasks) and (moved := recall_change(scores, model)):
            yield Text(
                f"Mean recall of {model}: {moved.estimate:+.2f} points, between {moved.low:+.2f} "
                f"and {moved.high:+.2f}."
            )
    main = {(verdict.task, verdict.metric) for verdict in judged}
    others = [
        _cells(scores, task, metric)
        for task in scores.tasks
        for metric in scores.metrics(task)
        if (task, metric) not in main
    ]
    if others:
        yield Table(header, others, caption="All other metrics", folded=True)
    yield Text(
        "There are several verdicts here and no correction for that: one in twenty would be wrong "
        "by chance."
    )


def _judged(scores: Scores) -> Iterator[Verdict]:
    for task in scores.tasks:
        metric = TASKS[task].metric if task in TASKS else scores.metrics(task)[0]
        for model in scores.models[1:]:
            yield judge(scores, model, task, metric)


def _main_rows(scores: Scores, judged: list[Verdict]) -> Iterator[tuple[str, ...]]:
    for task, metric in dict.fromkeys((verdict.task, verdict.metric) for verdict in judged):
        said = [
            verdict.sentence if len(scores.models) == 2 else f"{verdict.model}: {verdict.sentence}"
            for verdict in judged
            if (verdict.task, verdict.metric) == (task, metric)
        ]
        yield (*_cells(scores, task, metric), "; ".join(said))


def _cells(scores: Scores, task: str, metric: str) -> tuple[str, ...]:
    found = [scores.find(model, task, metric) for model in scores.models]
    return (task, metric, str(len(found[0].samples)), *map(score_text, found))


def _case(scores: Scores, verdict: Verdict) -> str:
    model = "" if len(scores.models) == 2 else f" ({verdict.model})"
    return f"{verdict.task}, {verdict.metric}{model}: {verdict.sentence}"


def _sweep(found: Findings) -> Iterator[Block]:
    if found.sweep is None:
        yield from _missing(
            "Only one width was looked at. A sweep calibrates once and shows what widths cost.",
            "statetrim trim MODEL --sweep 96,64,48,32 --text text.jsonl -o SWEEP",
        )
        return
    points = [p for p in _dicts(found.sweep.get("points")) if number(p.get("state_bytes"))]
    metrics: dict[str, dict[str, list[Point]]] = {}
    rows = []
    for point in points:
        state, method = float(point["state_bytes"]), str(point.get("method"))
        for name, score in _mapping(point.get("scores")).items():
            score = _mapping(score)
            if not number(score.get("value")):
                continue
            value, low, high = (
                float(score[key]) if number(score.get(key)) else None
                for key in ("value", "low", "high")
            )
            assert value is not None
            by_method = metrics.setdefault(f"{name} ({score.get('unit', '')})", {})
            by_method.setdefault(method, []).append(Point(state / 2**20, value, low, high))
            between = "" if low is None or high is None else f"{low:.4g} to {high:.4g}"
            rows.append(
                (
                    str(point.get("keep")),
                    str(point.get("keep_values") or "all"),
                    method,
                    size(int(state)),
                    str(name),
                    f"{value:.4g}",
                    between,
                )
            )
    for name, by_method in metrics.items():
        series = [
            Series(method, sorted(found_points, key=lambda p: p.x))
            for method, found_points in by_method.items()
        ]
        chart = line_chart(
            series,
            f"{name} against the state of one sequence",
            x="state of a sequence, MiB",
            y=name,
            marks=True,
        )
        yield Picture(chart, f"{name} by the size of the state; bars are 95% intervals.")
    yield Table(("keys", "values", "method", "state", "metric", "value", "95% interval"), rows)


def _ranks(found: Findings) -> Iterator[Block]:
    analysis = found.analysis
    if analysis is None:
        yield from _missing(
            "The state's rank was not looked at.",
            "statetrim analyze SMALL --baseline MODEL --text text.jsonl --tokens 16k "
            "-o analysis.json",
        )
        return
    parts = {"before": analysis.baseline} if analysis.baseline else {}
    looked: dict[str, Analysis] = {**parts, "after" if parts else "this model": analysis}
    means = {name: float(part.mean_utilization.nanmean()) for name, part in looked.items()}
    words = ", ".join(
        f"{name} {100 * mean:.1f}% of {looked[name].widest}" for name, mean in means.items()
    )
    yield Text(
        f"A state of d keys could have rank d; its effective rank says how many directions it "
        f"really uses. Mean use: {words}. A narrower state reaches a higher share with less in it."
    )
    curves = [
        Series(
            f"{name} (largest rank {part.widest})",
            _thinned(
                [
                    Point(x, y)
                    for x, y in zip(part.positions.tolist(), part.curve.tolist(), strict=True)
                ]
            ),
        )
        for name, part in looked.items()
    ]
    yield Picture(
        line_chart(
            curves,
            "Share of the largest rank in use, by token",
            x="token",
            y="rank in use",
            show_y=_percent,
            from_zero=True,
        ),
        "Share of the largest possible rank in use after each token; mean over layers and heads.",
    )
    fullest = int(analysis.mean_utilization.nan_to_num().argmax())
    row, head = divmod(fullest, analysis.geometry.num_v_heads)
    layer = list(analysis.layers)[row]
    spectra = [
        Series(name, [Point(n, y) for n, y in enumerate(_spectrum(part, layer, head), start=1)])
        for name, part in looked.items()
        if layer in part.layers and head < part.geometry.num_v_heads
    ]
    chart = line_chart(
        spectra,
        f"Singular values of the state of layer {layer}, head {head}",
        x="singular value, from the largest",
        y="mean over tokens",
        log=True,
    )
    if chart:
        yield Picture(
            chart,
            f"Singular values of the fullest head (layer {layer}, head {head}): a steep fall means "
            f"that few directions carry the memory.",
        )
    top = max(float(part.mean_utilization.nan_to_num().max()) for part in looked.values())
    for name, part in looked.items():
        chart = heat_map(
            part.mean_utilization,
            list(map(str, part.layers)),
            f"Rank in use {name}, by layer and head, in percent",
            top,
        )
        if chart:
            yield Picture(chart, f"Rank in use {name}, in %: a row a layer, a column a head.")
    yield Table(
        ("layer", *looked, "κ keys", "κ queries"),
        [
            (
                str(layer),
                *(
                    _percent(float(part.mean_utilization[row].nanmean()))
                    for part in looked.values()
                ),
                f"{float(one.key_condition.nanmedian()):,.0f}",
                f"{float(one.query_condition.nanmedian()):,.0f}",
            )
            for row, (layer, one) in enumerate(analysis.layers.items())
            if all(row < len(part.layers) for part in looked.values())
        ],
        caption="Rank in use by layer; κ is the condition number, median head",
        folded=True,
    )


def _spectrum(part: Analysis, layer: int, head: int) -> list[float]:
    values: list[float] = part.layers[layer].spectrum[head].tolist()
    return values


def _speed(found: Findings) -> Iterator[Block]:
    yield from _missing(
        "Speed was not measured. Smaller heads save memory traffic; whether they save time depends "
        "on the kernels, so measure where you serve.",
        "statetrim benchmark SMALL --baseline MODEL -o timings.json",
    )


def _engines(found: Findings) -> Iterator[Block]:
    yield Text(
        "The result is an ordinary checkpoint of its model type: what loads the original from a "
        "config loads this one, unless its kernels know only certain widths."
    )


def _recovery(found: Findings) -> Iterator[Block]:
    record = found.recovery
    if record is None:
        yield from _missing(
            "No training followed the cut.",
            "statetrim recover SMALL --teacher MODEL --text text.jsonl -o RECOVERED",
        )
        return
    options = _mapping(record.get("options"))
    yield Table(("", "recovery"), [(str(name), str(value)) for name, value in options.items()])
    curve = [p for p in _dicts(record.get("curve")) if number(p.get("step"))]
    names = [n for n in ("loss", "ce", "kl") if curve and all(number(p.get(n)) for p in curve)]
    series = [
        Series(
            name,
            _thinned([Point(float(p["step"]), float(p[name])) for p in curve]),
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


def _reproduce(found: Findings) -> Iterator[Block]:
    plan = found.plan
    if plan is None:
        yield Text("Without a plan there is nothing to say how this was made.", "missing")
        return
    heard = _mapping(plan.lineage.get("statistics"))
    lines = []
    for data in _dicts(heard.get("data")):
        count, length = data.get("count"), data.get("length")
        if type(count) is int and type(length) is int:
            lines.append(
                f"statetrim calibrate MODEL --text {_quoted(data.get('text'))} --tokens "
                f"{count * length} --length {length} --skip {_quoted(data.get('skip'))} "
                f"--batch-size {_quoted(heard.get('batch_size'))} --for {_quoted(plan.method)} "
                f"-o statistics.safetensors"
            )
    options = "".join(
        f" --option {_quoted(f'{name}={_option(value)}')}" for name, value in plan.options.items()
    )
    statistics = " --statistics statistics.safetensors" if heard else ""
    lines.append(
        f"statetrim select MODEL --method {_quoted(plan.method)} --keep {_quoted(plan.requested)} "
        f"--seed {plan.seed}{options}{statistics} -o plan.json"
    )
    lines.append("statetrim prune MODEL plan.json -o SMALL")
    yield Text(
        f"MODEL is the original checkpoint (digest {_brief(plan.lineage.get('source'))}). The same "
        f"model, text and options give the same plan, and the same plan the same bytes."
    )
    yield Command(lines)


def _lineage(found: Findings) -> Iterator[Block]:
    for sentence in found.mismatches:
        yield Text(f"These artifacts do not belong together: {sentence}.", "note")
    records: dict[str, Mapping[str, Any]] = {}
    if found.plan:
        records["plan"] = found.plan.lineage
    if found.prune:
        records["prune"] = found.prune
    if found.analysis:
        records["analysis"] = found.analysis.lineage
    if found.scores:
        records["scores"] = found.scores.lineage
    for name in ("recovery", "timings", "sweep"):
        record = getattr(found, name)
        if record:
            records[name] = _mapping(record.get("lineage")) or record
    rows = [
        (
            name,
            found.sources.get(name, ""),
            _brief(record.get("statetrim")),
            _brief(record.get("source") or record.get("baseline")),
        )
        for name, record in records.items()
    ]
    rows += [
        (f"checkpoint {name}", found.sources[name], "", _brief(model.digest))
        for name, model in (("before", found.before), ("after", found.after))
        if model is not None and model.shards
    ]
    yield Table(("artifact", "file", "statetrim", "model digest"), rows)


def score_text(score: Score) -> str:
    if score.unit == "perplexity":
        return f"{score.value:,.2f}" if score.value < 1e7 else f"{score.value:.2e}"
    return f"{100 * score.value:.1f}%" if score.unit == "share" else f"{score.value:.4f}"


def size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"


def change(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.1f}%" if before else ""


def number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _percent(value: float) -> str:
    return f"{100 * value:.4g}%" if isfinite(value) else "none"


def _spread(items: list[int], most: int) -> list[int]:
    """At most `most` of them, first and last included."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _thinned(points: list[Point]) -> list[Point]:
    return [points[i] for i in _spread(list(range(len(points))), MOST_CURVE_POINTS)]


def _ranges(channels: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    runs: list[list[int]] = []
    for channel in channels:
        if runs and channel == runs[-1][1] + 1:
            runs[-1][1] = channel
        else:
            runs.append([channel, channel])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _brief(value: Any) -> str:
    return "" if value is None else str(value)[:16]


def _quoted(value: Any) -> str:
    return shlex.quote(" ".join(str(value).split()))


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
