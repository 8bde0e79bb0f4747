"""What does the state of a hybrid do, and what does it cost to make it smaller?

    python studies/hybrids.py run MODEL --text train.jsonl --test valid.jsonl --work FOLDER
    python studies/hybrids.py page

MODEL was trained by train_tiny.py, whose log may be in MODEL.log: its recipe says of which kind it
is.
Every row is one change of the model: memory that is taken away, a dtype of the state, or a cut with
refitted output projections. The tasks are windows of 1,024 tokens of text, and five with random
tokens or repeated text, of which training saw the first two: recall of 4 and 32 pairs (MQAR), the
latest value of keys that come twice, the second copy of random tokens, and that of a passage.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn import functional

import statetrim as st
from evaluator import changes, quiet
from precision import COLOURS, stored_bytes
from runner import Row, Rows, by_model, fill, read_rows, start, study_parser, table, with_margin
from statetrim.defaults import DEFAULT_METHODS, RECALL_SHARE
from statetrim.maths.quantization import fake_quantize
from statetrim.runtime import states
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.forgetting import attention_calls, emptied_states
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.runtime.logits import LogitReader
from statetrim.tasks.recall import associations

WINDOW, BATCH = 1024, 8
SEED = 2**20  # of task sequences; those of calibration and training are drawn otherwise
PASSAGE = 128  # tokens that are repeated
TASKS = ("nll", "recall 4", "recall 32", "latest", "copy", "passage")
RECALL = TASKS[1:3]
TEXT_ALONE = "calibrated on text alone"
CALIBRATION: dict[str, Any] = {"tokens": 2**15, "length": 256, "progress": False}
METHODS = DEFAULT_METHODS.split(",")
CHANGES = ("nothing", "forgets", "dtype", "cut")
HORIZONS = (16, 64, 256)
FEEDBACK = "int8 with error feedback"
DTYPES = ("bfloat16", "float8_e4m3fn", "int8", FEEDBACK)


def kind_of(recipe: Row) -> str:
    """The name of the first values of a recipe of train_tiny.py; "late" if softmax came later."""
    if recipe.get("softmax_from_step"):
        return "late"
    if recipe.get("shortest_decay_step"):
        return "fla"
    return "open" if recipe["gate_opening"] else "fast"


Lines = list[tuple[list[str], dict[str, Row]]]
"""Of a table: the first cells of a line, and the change of each model in it."""


class Sequences:
    """Token ids of every task, and the positions whose next tokens are scored."""

    def __init__(self, model: st.Checkpoint, test: Path, windows: int, rows: int) -> None:
        text = Corpus(test, model).read(tokens=windows * WINDOW, length=WINDOW).ids.long()
        vocabulary = int(model.config["vocab_size"])
        generator = torch.Generator().manual_seed(SEED)
        self.tasks = {"nll": (text, torch.arange(WINDOW - 1))}
        for pairs, count in ((4, 4 * rows), (32, rows)):
            sequences = associations(vocabulary, pairs, count, seed=SEED)
            self.tasks[f"recall {pairs}"] = sequences
        self.tasks["latest"] = latest_values(vocabulary, 16, rows, generator)
        random = torch.randint(
            vocabulary // 4, vocabulary, (rows, PASSAGE // 2), generator=generator
        )
        self.tasks["copy"] = repeated(random)
        self.tasks["passage"] = repeated(text[:rows, :PASSAGE])

    @torch.inference_mode()
    def samples(self, live: LiveModel) -> dict[str, Tensor]:
        """Task -> float64 [rows]: NLL in nats, or the share of tokens that are ranked first, %."""
        reader, samples = LogitReader(live), dict[str, Tensor]()
        for task, (ids, positions) in self.tasks.items():
            rows = []
            for batch in torch.split(ids, BATCH):
                logits, target = reader.forward(batch)(positions), batch[:, positions + 1]
                if task == "nll":
                    loss = functional.cross_entropy(logits.mT, target, reduction="none")
                    rows.append(loss.double().mean(1))
                else:
                    rows.append(100 * (logits.argmax(-1) == target).double().mean(1))
            samples[task] = torch.cat(rows)
        return samples


def latest_values(
    vocabulary: int, keys: int, rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Ids [rows, 6 * keys]: every key with a value, every key with another, then every key with the
    latter, each in a new order; and the positions [keys] of the last keys."""
    quarter = vocabulary // 4

    def distinct(count: int) -> Tensor:
        return torch.rand(rows, quarter, generator=generator).topk(count, dim=-1).indices

    key, value = quarter + distinct(keys), 2 * quarter + distinct(2 * keys)
    parts = []
    for values in (value[:, :keys], value[:, keys:], value[:, keys:]):
        order = torch.rand(rows, keys, generator=generator).argsort(-1)
        parts.append(torch.stack([key.gather(1, order), values.gather(1, order)], -1).flatten(1))
    return torch.cat(parts, 1), 4 * keys + 2 * torch.arange(keys)


def repeated(ids: Tensor) -> tuple[Tensor, Tensor]:
    """`ids` [rows, time] twice, and the positions of the second copy after its first token."""
    time = ids.shape[1]
    return torch.cat([ids, ids], 1), torch.arange(time, 2 * time - 1)


class Changes:
    """The cases of a model, and how each is measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.model = options, st.open(options.model)
        self.name = self.model.path.name
        self.sequences = Sequences(self.model, options.test, options.windows, options.rows)
        self.live = load_live(self.model)
        self.softmax_layers = set[int]()
        with attention_calls(self.live, on_call=self.softmax_layers.add):
            self.before = self.sequences.samples(self.live)

    def contexts(self) -> Iterator[tuple[str, str, AbstractContextManager[object]]]:
        """What is changed, how, and the context in which it is."""
        layers, live = list(self.model.geometry.layers), self.live
        yield "nothing", "", nullcontext()
        for layer in layers:
            yield "forgets", f"the state of layer {layer}", emptied_states(live, [layer], 1)
        blind = attention_calls(live, blind=self.softmax_layers)
        yield "forgets", "the KV cache", blind
        yield "forgets", "all states", emptied_states(live, layers, 1)
        for every in HORIZONS:
            name = f"states, emptied every {every} tokens"
            yield "forgets", name, emptied_states(live, layers, every)
        for dtype in DTYPES:
            yield "dtype", dtype, rounded_states(live, dtype)

    def cuts(self) -> Iterator[Row]:
        """What is kept, in which dtype, and how it is chosen."""
        geometry = self.model.geometry
        keys, values = geometry.head_k_dim, geometry.head_v_dim
        half = f"{keys // 2}x{values // 2}"
        shapes = [f"{keys}x{values // 2}", f"{keys // 2}x{values}", half]
        shapes += [f"{keys // 4}x{values // 2}", f"{keys // 2}x{values // 4}"]
        heads = f"{geometry.num_k_heads}heads"
        for to in (*shapes, heads):
            for method in ("default", "rand"):
                yield {"to": to, "dtype": "float32", "method": method}
        yield {"to": half, "dtype": "float32", "method": TEXT_ALONE}
        by_layer = [f"{layer}={keys}x{values},others={half}" for layer in geometry.layers]
        for to in by_layer:
            yield {"to": to, "dtype": "float32", "method": "default"}
        for to in (shapes[0], half, heads, *by_layer):
            yield {"to": to, "dtype": "bfloat16", "method": "default"}

    def measured_cut(self, cut: Row) -> Row:
        small = self.refitted(cut["to"], cut["method"])
        live, share = load_live(small), small.geometry.state_numel / self.model.geometry.state_numel
        with rounded_states(live, cut["dtype"]):
            after = self.sequences.samples(live)
        return {"bytes": share * self.share_of(cut["dtype"])} | changes(self.before, after)

    def refitted(self, to: str, method: str) -> st.Checkpoint:
        """The cut, with output projections refitted; kept in the work folder."""
        folder = self.options.work / self.name
        folder.mkdir(parents=True, exist_ok=True)
        out = folder / re.sub(r"[=, ]", "-", f"{to}-{method}")
        if (out / "refitted").exists():
            return st.open(out / "refitted")
        recall = 0.0 if method == TEXT_ALONE else RECALL_SHARE
        sums, text = folder / f"statistics-{recall}.safetensors", self.options.text
        mix = CALIBRATION | {"recall": recall}
        if not sums.exists():
            st.calibrate(self.model, text, methods=METHODS, out=sums, **mix)
        chosen = "rand" if method == "rand" else DEFAULT_METHODS
        plan = st.select(self.model, method=chosen, to=to, statistics=sums, progress=False)
        cut = st.prune(self.model, plan, out / "cut", uneven=True, progress=False)
        fitted = st.calibrate(cut, text, original=self.model, **mix)
        return st.refit(cut, fitted, out=out / "refitted", progress=False)

    def share_of(self, dtype: str) -> float:
        """Bytes of a state in `dtype`, of those in float32; without those of stored errors."""
        keys, values = self.model.geometry.head_k_dim, self.model.geometry.head_v_dim
        plain = "int8" if dtype == FEEDBACK else dtype
        return stored_bytes(plain, keys, values) / (4 * keys * values)


@contextmanager
def rounded_states(live: LiveModel, dtype: str) -> Iterator[None]:
    """Within, states are stored in `dtype` after every token."""
    with ExitStack() as stack:
        if dtype == FEEDBACK:
            stack.enter_context(error_feedback())
            dtype = "int8"
        stack.enter_context(states.stored_states(live, st.StateStorage(dtype, 1)))
        yield


@contextmanager
def error_feedback() -> Iterator[None]:
    """Within, the error of each rounding of a state is added before the next one."""
    errors: list[Tensor] = []  # of the last token of the present kernel call
    run_by_token = states._Rounding._run_by_token

    def run_without_error(*args: Any) -> tuple[Tensor, Tensor]:
        errors.clear()
        return run_by_token(*args)

    def quantize(x: Tensor, dtype: str, axis: int, generator: None) -> Tensor:
        corrected = x + errors.pop() if errors else x
        rounded = fake_quantize(corrected, dtype, axis, generator)
        errors.append(corrected - rounded)
        return rounded

    with (
        mock.patch.object(states._Rounding, "_run_by_token", run_without_error),
        mock.patch.object(states, "fake_quantize", quantize),
    ):
        yield


def run() -> None:
    paths = ("model", "text", "test", "work")
    parser = study_parser(__doc__, *paths, results="results/hybrids.jsonl", windows=16, rows=32)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=CHANGES)
    options = parser.parse_args()
    quiet()
    torch.set_flush_denormal(True)
    study, results = Changes(options), Rows(options.results)
    training = json.loads((options.model / "training.json").read_text())
    log = options.model.with_name(f"{study.name}.log")
    case = {"model": study.name, "kind": kind_of(training["recipe"])}
    contexts = list(study.contexts())

    def measure(row: Row) -> Row:
        if "to" in row:
            return study.measured_cut(row)
        contexts_by_name = {(kind, name): context for kind, name, context in contexts}
        with contexts_by_name[row["change"], row["of"]]:
            after = study.sequences.samples(study.live)
        share = study.share_of(row["of"]) if row["change"] == "dtype" else 1.0
        figures: Row = {"bytes": share} | changes(study.before, after)
        if row["change"] == "nothing":
            figures |= {"parameters": study.model.parameters, "recipe": training["recipe"]}
            figures |= {"seconds": round(training["seconds"]), "curve": curve(log)}
        return figures

    cases = [case | {"change": kind, "of": name} for kind, name, _ in contexts]
    cases += [case | {"change": "cut"} | cut for cut in study.cuts()]
    results.measure_missing([each for each in cases if each["change"] in options.only], measure)


def curve(log: Path) -> list[tuple[int, float, int]]:
    """Steps, the NLL of text there and the pairs reached, at tenths of a training."""
    pattern = r"step (\d+) .*text_loss (\S+) .*pairs (\d+)"
    matches = re.findall(pattern, log.read_text() if log.exists() else "")
    points = [(int(step), float(nll), int(pairs)) for step, nll, pairs in matches]
    return points[:: max(1, len(points) // 10)]


def models_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if row["change"] != "nothing":
            continue
        recipe = row["recipe"]
        shape = f"{recipe['value_heads_per_key']} x {recipe['head_dim']}x{recipe['head_dim']}"
        tokens = recipe["steps"] * recipe["text_rows"] * recipe["text_length"] / 1e6
        recall = recipe["recall_tokens"] / (recipe["text_rows"] * recipe["text_length"])
        scores = [f"{row[task][0]:.0f}" for task in TASKS[1:]]
        numbers = [shape, f"{row['parameters']:,}", f"{tokens:.1f}M + {recall:.1%}"]
        lines.append([
            row["model"], row["kind"], *numbers, f"{row['nll'][0]:.2f}", *scores,
            str(row["seconds"]),
        ])  # fmt: skip
    header = [
        "model",
        "kind",
        "states of a key head",
        "parameters",
        "text + recall",
        "NLL",
        *TASKS[1:],
        "CPU s",
    ]
    return table(header, lines, left=2)


def groups_of(rows: list[Row]) -> dict[str, list[str]]:
    """Column of a table -> the models in it, which differ in the seed of their training alone."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        if row["change"] == "nothing":
            recipe = {"shortest_decay_step": 0.0} | row["recipe"] | {"seed": 0}  # old rows lack it
            groups.setdefault(json.dumps(recipe, sort_keys=True), []).append(row["model"])
    return {f"{names[0]} x {len(names)}" if len(names) > 1 else names[0]: names
            for names in groups.values()}  # fmt: skip


def mean_and_bounds(figures: list[list[float]]) -> tuple[float, float, float]:
    """A mean change, and the least and the most of several models; of one its 95 % interval."""
    if len(figures) == 1:
        _, change, low, high = figures[0]
        return change, low, high
    changes = [change for _, change, _, _ in figures]
    return fmean(changes), min(changes), max(changes)


def change_text(figures: list[list[float]], digits: int) -> str:
    mean, low, high = mean_and_bounds(figures)
    if len(figures) == 1:
        return with_margin([mean, low, high], digits)
    return f"{mean:+.{digits}f} ({low:+.{digits}f}..{high:+.{digits}f})"


def shown_tasks(rows: list[Row], names: list[str]) -> tuple[str, str]:
    """Text, and recall of the most pairs of which these models all find at least half."""
    before = [row for row in rows if row["change"] == "nothing" and row["model"] in names]
    return "nll", "recall 32" if all(row["recall 32"][0] >= 50 for row in before) else "recall 4"


def table_by_group(rows: list[Row], names: list[str], lines: Lines) -> str:
    """Changes in nats, and of recall in points, in columns of each group that has all `lines`.
    `names` are those of the columns before."""
    header, cells = [*names], [start for start, _ in lines]
    for group, models in groups_of(rows).items():
        if not all(model in by_name for _, by_name in lines for model in models):
            continue
        for task in shown_tasks(rows, models):
            header.append(f"{group}: {task.replace('nll', 'NLL')}")
            for line, (_, by_name) in zip(cells, lines, strict=True):
                figures = [by_name[model][task] for model in models]
                line.append(change_text(figures, 3 if task == "nll" else 0))
    return table(header, cells)


def memory_table(rows: list[Row]) -> str:
    """The layer that matters most, the most that another does, and everything of a kind."""
    models = {name: each for name, each in by_model(rows).items() if len(each) > 1}
    lines: dict[str, dict[str, Row]] = {}
    numbers = []
    for name, of_model in models.items():
        forgetful = [row for row in of_model if row["change"] == "forgets"]
        layers = [row for row in forgetful if "layer" in row["of"]]
        most = max(layers, key=lambda row: row["nll"][1])
        others = [row for row in layers if row is not most]
        widest = {task: max((row[task] for row in others), key=change_size) for task in TASKS}
        numbers.append(f"{most['of'].split()[-1]} in {name}")
        lines.setdefault("the state of that layer", {})[name] = most
        lines.setdefault("that of another layer, at most", {})[name] = widest
        for row in forgetful:
            if row not in layers:
                lines.setdefault(row["of"], {})[name] = row
    note = f"The linear layer that matters most is {', '.join(numbers)}."
    labelled = [([label], each) for label, each in lines.items()]
    return f"{note}\n\n{table_by_group(rows, ['without'], labelled)}"


def change_size(figures: list[float]) -> float:
    return abs(figures[1])


def lever_of(row: Row) -> str:
    """The lever that a row is, in the same words for each model."""
    if row["change"] == "dtype":
        return str(row["of"])
    start = "random " if row["method"] == "rand" else ""
    end = f", {TEXT_ALONE}" if row["method"] == TEXT_ALONE else ""
    return start + str(row["to"]) + end


def levers_of(rows: list[Row]) -> dict[tuple[str, float], dict[str, Row]]:
    """Lever and its share of the bytes -> the row of each model that was cut."""
    levers: dict[tuple[str, float], dict[str, Row]] = {}
    for of_model in with_cuts(rows).values():
        for row in of_model:
            if row["change"] in ("dtype", "cut"):
                levers.setdefault((lever_of(row), row["bytes"]), {})[row["model"]] = row
    return levers


def levers_table(rows: list[Row]) -> str:
    """A row per lever, the cuts in float32; and what bfloat16 adds to a cut."""
    levers, lines = levers_of(rows), Lines()
    for (lever, share), by_name in sorted(levers.items(), key=lambda item: -item[0][1]):
        if first(by_name).get("dtype") != "bfloat16":
            lines.append(([lever, f"{share:.0%}"], by_name))
    added = dict[str, float]()
    for (lever, share), by_name in levers.items():
        for name, row in by_name.items():
            if row.get("dtype") == "bfloat16":
                for task in ("nll", *RECALL):
                    difference = abs(row[task][1] - levers[lever, 2 * share][name][task][1])
                    added[task] = max(added.get(task, 0.0), difference)
    recall = max(added[task] for task in RECALL)
    note = "With its state in bfloat16 a cut takes half of these bytes, and changes by at most "
    note += f"{added['nll']:.4f} nats and {recall:.1f} points."
    return f"{table_by_group(rows, ['lever', 'bytes'], lines)}\n\n{note}"


def first(by_name: dict[str, Row]) -> Row:
    return next(iter(by_name.values()))


def with_cuts(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each model that was cut."""
    models = by_model(rows)
    return {name: each for name, each in models.items() if any("to" in row for row in each)}


def draw(rows: list[Row], out: Path) -> None:
    """Loss of text against bytes, a panel for each group of models that were cut."""
    cut = with_cuts(rows)
    groups = {group: models for group, models in groups_of(rows).items() if models[0] in cut}
    figure, panels = plt.subplots(1, len(groups), figsize=(4.2 * len(groups), 3.6), sharey=True,
                                  squeeze=False)  # fmt: skip
    for axes, (group, models) in zip(panels[0], groups.items(), strict=True):
        draw_group(axes, levers_of(rows), models)
        axes.set_title(group, fontsize=9)
    panels[0][0].set_ylabel("increase of NLL, nats")
    panels[0][-1].legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(out, dpi=150)


LOWEST = 1e-4  # nats that are drawn
LEVERS = {  # what is drawn: marker and colour
    "dtype": ("o", COLOURS["bfloat16"]),
    "shape": ("s", COLOURS["int8"]),
    "heads": ("^", COLOURS["float8_e4m3fn"]),
    "by layer": ("D", COLOURS["float16"]),
    "random": ("x", "grey"),
}


def draw_group(
    axes: Axes, levers: dict[tuple[str, float], dict[str, Row]], models: list[str]
) -> None:
    """Points, with the range of the models, or the 95 % interval of one."""
    for label, (marker, colour) in LEVERS.items():
        chosen = [by_name for by_name in levers.values() if drawn_as(first(by_name)) == label]
        for by_name in chosen:
            bounds = mean_and_bounds([by_name[model]["nll"] for model in models])
            nll, low, high = (max(bound, LOWEST) for bound in bounds)
            axes.plot([first(by_name)["bytes"]] * 2, [low, high], color=colour, linewidth=0.7)
            axes.plot(first(by_name)["bytes"], nll, marker, color=colour)
        axes.plot([], marker, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([1 / 2, 1 / 4, 1 / 8], ["1/2", "1/4", "1/8"])
    axes.set_xlabel("bytes of the state")


def drawn_as(row: Row) -> str:
    if row["change"] == "dtype":
        return "dtype"
    if row["change"] != "cut":
        return ""
    if row["method"] == "rand":
        return "random"
    kept = str(row["to"])
    return "by layer" if "=" in kept else "heads" if "heads" in kept else "shape"


def page(results: Path) -> None:
    rows = read_rows(results / "hybrids.jsonl")
    fill(results / "hybrids.md", {
        "models": models_table(rows),
        "memory": memory_table(rows),
        "levers": levers_table(rows),
    })  # fmt: skip
    draw(rows, results / "hybrids.png")


if __name__ == "__main__":
    start(page, run=run)
