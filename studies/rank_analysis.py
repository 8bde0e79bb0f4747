"""The pictures of results/rank-analysis.md: a small trained DeltaNet before and after every method.

    python studies/rank_analysis.py MODEL --text train.jsonl --test valid.jsonl [--out FOLDER]

Calibrates once on `--text`, prunes with every method, analyses each cut on the held-out `--test`,
and prints the table of the page.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import torch
from torch.nn import functional

import statetrim as st
from runner import RESULTS, study_parser, table
from statetrim.reporting import figures as figure_files
from statetrim.reporting import pictures as figures
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load

METHODS = ("rand", "l1", "s_wanda", "grad", "drrqr", "energy", "product")
TOKENS, LENGTH, STRIDE = 4 * 2048, 2048, 16
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
    draw(analyses, options.out)
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


def draw(analyses: dict[str, st.Analysis], out: Path) -> None:
    original = analyses["original"]
    fullest = int(original.mean_utilization.argmax())
    layer, head = divmod(fullest, original.geometry.num_v_heads)
    compared = {name: analyses[name] for name in ("original", "l1", "grad", "drrqr")}
    first_and_last = {name: analyses[name] for name in ("original", "drrqr")}
    pictures = {
        "utilization": figures.utilization_curves(analyses),
        "spectra": figures.spectra(compared, list(original.layers)[layer], head),
        "heat-map": figures.heat_map(first_and_last),
        "filters": figures.filter_picture(original),
    }
    for name, picture in pictures.items():
        for path in figure_files.save(picture, out / name):
            if path.suffix == ".svg" and path.stat().st_size > MAX_SVG_BYTES:
                path.unlink()


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
