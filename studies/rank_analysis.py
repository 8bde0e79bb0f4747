"""The pictures of results/rank-analysis.md: a small trained DeltaNet before and after every method.

    python studies/rank_analysis.py MODEL --text train.jsonl --test valid.jsonl [--out FOLDER]

Calibrates once on `--text`, prunes with every method, analyses each cut on the held-out `--test`,
and prints the table of the page.
"""

from __future__ import annotations

import logging
import tempfile
import textwrap
from collections.abc import Sequence
from math import gamma, pi, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

import statetrim as st
from rank_pictures import Sheet, heat_map, sheet, spectra, utilization_curves
from runner import RESULTS, study_parser, table
from statetrim.maths.formatting import evenly_spaced
from statetrim.reporting.charts import Chart
from statetrim.reporting.figures import WIDTH, figure
from statetrim.reporting.theme import LIGHT
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHODS = ("rand", "l1", "s_wanda", "grad", "drrqr", "energy", "product")
TOKENS, LENGTH, STRIDE = 4 * 2048, 2048, 16
MAX_FILTER_LAYERS = 4
DIVERGING = ("#053061", "#4393c3", "#f7f7f7", "#d6604d", "#67001f")
MAX_SVG_BYTES = 64 * 1024  # larger files are not committed


def main() -> None:
    parser = study_parser(__doc__, "model", "text", "test", keep=0.25)
    parser.add_argument("--out", type=Path, default=RESULTS / "rank-analysis")
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model, analyses, losses = st.open(options.model), dict[str, st.Analysis](), dict[str, float]()
    statistics = st.calibrate(model, options.text, tokens=48 * 512, methods=METHODS[2:], recall=0.0)
    with tempfile.TemporaryDirectory() as directory:
        for method in ("original", *METHODS):
            small = model
            if method != "original":
                plan = st.select(model, method, f"{options.keep:.1%}x100%", statistics=statistics)
                small = st.prune(model, plan, out=Path(directory) / method)
            analyses[method] = st.analyze(
                small, options.test, tokens=TOKENS, length=LENGTH, every=STRIDE
            )
            losses[method] = loss(small, options.test)
    draw(model, analyses, options.out)
    print(analyses_table(analyses, losses))


@torch.inference_mode()
def loss(model: st.Checkpoint, text: Path) -> float:
    """Mean next-token loss in nats on the text that is analysed."""
    ids = Corpus(text, model).read(tokens=TOKENS, length=LENGTH).ids.long()
    live, total = load(model), 0.0
    for row in ids:
        logits = live(input_ids=row[None], use_cache=False).logits[0, :-1]
        total += float(functional.cross_entropy(logits.float(), row[1:], reduction="sum"))
    return total / (ids.shape[0] * (LENGTH - 1))


def draw(model: st.Checkpoint, analyses: dict[str, st.Analysis], out: Path) -> None:
    original = analyses["original"]
    fullest = int(original.mean_utilization.argmax())
    layer, head = divmod(fullest, original.geometry.num_v_heads)
    compared = {name: analyses[name] for name in ("original", "l1", "grad", "drrqr")}
    first_and_last = {name: analyses[name] for name in ("original", "drrqr")}
    pictures = {
        "utilization": utilization_curves(analyses),
        "spectra": spectra(compared, list(original.layers)[layer], head),
        "heat-map": heat_map(first_and_last),
        "filters": filter_picture(model),
    }
    for name, picture in pictures.items():
        for path in save(picture, out / name):
            if path.suffix == ".svg" and path.stat().st_size > MAX_SVG_BYTES:
                path.unlink()


def save(sheet: Sheet, path: Path) -> list[Path]:
    """Write PATH.png and PATH.svg; equal sheets give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width = WIDTH * len(sheet.panels)
    caption = textwrap.fill(sheet.caption, int(14 * width))
    height = max(panel.height for panel in sheet.panels) + 0.5 + 0.16 * caption.count("\n")
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg")]
    with figure(width, height) as drawn:
        places = drawn.subfigures(1, len(sheet.panels), squeeze=False)[0]
        for panel, place in zip(sheet.panels, places, strict=True):
            panel.draw(place.subplots())
            place.suptitle(panel.title, x=0.02, ha="left")
        drawn.supxlabel(caption, x=0.01, ha="left", size=9, color=LIGHT["faint"])
        for file, metadata in zip(files, ({"Software": None}, {"Date": None}), strict=True):
            drawn.savefig(file, dpi=200, metadata=metadata)
    return files


def filter_picture(model: st.Checkpoint) -> Sheet:
    """Filters of the short convolution of queries and keys, which the model must have, each scaled
    to norm one, by head, in at most MAX_FILTER_LAYERS layers at even distances."""
    width = model.geometry.conv_width
    layers = evenly_spaced(model.geometry.layers, MAX_FILTER_LAYERS)
    random_cosine = gamma(width / 2) / (sqrt(pi) * gamma((width + 1) / 2))  # mean |cosine|
    return sheet(
        [_filter_chart(number, model, layers) for number in (0, 1)],
        "How to read it: every column is the filter of one channel, oldest token at the top, red "
        "above zero and blue below, the darker the stronger; lines part the heads. Stripes that "
        "run through a head are filters its channels share. Above each head, the mean |cosine| "
        f"between its filters: 1 means alike up to sign, {random_cosine:.2f} is what random "
        f"filters give.",
    )


def _filter_chart(number: int, model: st.Checkpoint, layers: Sequence[int]) -> Chart:
    """A band per layer: its heads side by side, the similarity of their filters above; of queries
    (`number` 0) or keys (1)."""

    def draw(axes: Axes) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        scale = LinearSegmentedColormap.from_list("signs", DIVERGING)
        for row, layer in enumerate(layers):
            both = model.filters(layer)
            assert both is not None
            filters = both[number]
            top, heads = 1.7 * row, len(filters)
            band = (0, heads, top + 1, top)
            axes.imshow(
                _unit_taps(filters).numpy(), scale, extent=band, aspect="auto", vmin=-1, vmax=1
            )
            axes.vlines(range(1, heads), top, top + 1, color=LIGHT["ink"], linewidth=0.8)
            for head, value in enumerate(filter_similarity(filters).tolist()):
                if heads <= 12:
                    axes.text(head + 0.5, top - 0.08, f"{value:.2f}", ha="center")
        axes.set_xlim(0, heads)
        axes.set_ylim(1.7 * len(layers) - 0.6, -0.4)
        axes.set_yticks(
            [1.7 * row + 0.5 for row in range(len(layers))], map("layer {}".format, layers)
        )
        axes.set_xlabel("head")
        axes.grid(False)

    return Chart(f"{('query', 'key')[number]} filters by head", 0.6 + 0.9 * len(layers), draw)


def filter_similarity(filters: Tensor) -> Tensor:
    """[heads, channels, copies, width] -> [heads]: mean |cosine| over pairs of distinct channels.

    Random filters of width 4 have 0.42; only values above that show similarity.
    """
    smallest = torch.finfo(filters.dtype).tiny  # zeros stay zero
    unit = functional.normalize(filters.transpose(1, 2), dim=-1, eps=smallest)
    cosine = (unit @ unit.mT).abs().mean(1)
    channels = cosine.shape[-1]
    self_similarity = cosine.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (cosine.sum((-2, -1)) - self_similarity) / (channels * (channels - 1))


def _unit_taps(filters: Tensor) -> Tensor:
    """`filters` [heads, channels, copies, width], each scaled to norm one -> [width, columns]."""
    taps = filters.transpose(1, 2).reshape(-1, filters.shape[-1]).float()
    norms = taps.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    unit_taps: Tensor = taps / norms
    return unit_taps.nan_to_num(0).t()


def analyses_table(analyses: dict[str, st.Analysis], losses: dict[str, float]) -> str:
    lines = []
    for name, result in analyses.items():
        keys = torch.stack([layer.key_condition for layer in result.layers.values()])
        queries = torch.stack([layer.query_condition for layer in result.layers.values()])
        utilization = float(result.mean_utilization.mean())
        cells = [str(result.max_rank), f"{utilization * result.max_rank:.2f}", f"{utilization:.1%}"]
        cells += [f"{keys.median():.0f}", f"{queries.median():.0f}", f"{losses[name]:.3f}"]
        lines.append([name, *cells])
    header = ["model", "largest rank", "effective rank", "utilization", "κ keys", "κ queries"]
    return table([*header, "loss"], lines, left=7)


if __name__ == "__main__":
    main()
