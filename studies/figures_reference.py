"""The pictures of results/rank-analysis.md: a small trained DeltaNet before and after every method.

    python studies/figures_reference.py [--model tiny-delta_net] [--out results/rank-analysis]

Needs the reference models and text in ../shared next to the repository. Calibrates once, prunes
with every method, analyses each cut on the same held-out text, and prints the table of the page.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import torch
from torch.nn import functional

import statetrim as st
from statetrim.reporting import figures as figure_files
from statetrim.reporting import pictures as figures
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load

SHARED = Path(__file__).resolve().parents[2] / "shared"
MODELS = SHARED / "models"
CALIBRATION = SHARED / "data" / "pretrain_mix" / "train_60MB.jsonl"
TEXT = SHARED / "data" / "pretrain_mix" / "valid.jsonl"
METHODS = ("rand", "l1", "s_wanda", "grad", "drrqr", "energy", "product")
TOKENS, LENGTH, STRIDE = 4 * 2048, 2048, 16
MAX_SVG_BYTES = 64 * 1024  # larger files are not committed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny-delta_net")
    parser.add_argument("--keep", default="0.25")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "rank-analysis"
    )
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)

    model = st.open(MODELS / options.model)
    with tempfile.TemporaryDirectory() as directory:
        statistics = st.calibrate(
            model, CALIBRATION, tokens=48 * 512, methods=METHODS[2:], recall=0.0
        )
        analyses, losses = {"original": analysis(model)}, {"original": loss(model)}
        for method in METHODS:
            plan = st.select(
                model, method, f"{float(options.keep):.1%}x100%", statistics=statistics
            )
            small = st.prune(model, plan, out=Path(directory) / method)
            analyses[method], losses[method] = analysis(small), loss(small)
    draw(analyses, options.out)
    table(analyses, losses)


def analysis(model: st.Checkpoint) -> st.Analysis:
    return st.analyze(model, TEXT, tokens=TOKENS, length=LENGTH, every=STRIDE)


@torch.inference_mode()
def loss(model: st.Checkpoint) -> float:
    """Mean next-token loss in nats on the text that is analysed."""
    ids = Corpus(TEXT, model).read(tokens=TOKENS, length=LENGTH).ids.long()
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


def table(analyses: dict[str, st.Analysis], losses: dict[str, float]) -> None:
    print("| model | largest rank | effective rank | utilization | κ keys | κ queries | loss |")
    print("|---|---|---|---|---|---|---|")
    for name, result in analyses.items():
        keys = torch.stack([layer.key_condition for layer in result.layers.values()])
        queries = torch.stack([layer.query_condition for layer in result.layers.values()])
        utilization = float(result.mean_utilization.mean())
        effective_rank = utilization * result.max_rank
        print(
            f"| {name} | {result.max_rank} | {effective_rank:.2f} | {utilization:.1%} "
            f"| {keys.median():.0f} | {queries.median():.0f} | {losses[name]:.3f} |"
        )


if __name__ == "__main__":
    main()
