"""What a refit gains on every layer of a model, on the text of the fit and on other text.

    python studies/refit_errors.py MODEL --text train.jsonl [--keep 32 --keep-values 32]

Prints the relative residual sum of squares of each layer's output, before and after the refit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import statetrim as st
from arguments import study_parser
from statetrim.surgery.refit import layer_errors


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", keep=32, keep_values=32, method="energy",
        value_method="readout_greedy", tokens=2**14,
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokens, text = st.open(options.model), options.tokens, options.text
    methods = [options.method, options.value_method]
    statistics = st.calibrate(model, text, tokens=tokens, methods=methods, recall=0.0)
    plan = st.select(
        model,
        options.method,
        f"{options.keep}x{options.keep_values}",
        value_method=options.value_method,
        statistics=statistics,
    )
    with tempfile.TemporaryDirectory() as folder:
        small = st.prune(model, plan, Path(folder) / "small")
        fit = st.calibrate(small, text, original=model, tokens=tokens, recall=0.0)
        other = st.calibrate(
            small, text, original=model, tokens=tokens // 2, skip=tokens, recall=0.0
        )
        refitted = st.refit(small, fit, out=Path(folder) / "refitted")
        errors = {
            (when, where): layer_errors(checkpoint, sums)
            for when, checkpoint in (("before", small), ("after", refitted))
            for where, sums in (("fit", fit), ("other", other))
        }
    print("| layer | text of the fit | other text |\n|---|---:|---:|")
    for layer in model.geometry.layers:
        cells = [
            f"{errors['before', where][layer]:.2%} -> {errors['after', where][layer]:.2%}"
            for where in ("fit", "other")
        ]
        print(f"| {layer} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
