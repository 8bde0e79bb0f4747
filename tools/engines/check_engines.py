"""Original and cut models in real engines, judged by transformers: what `statetrim verify` says.

    python tools/engines/check_engines.py ENGINES MODELS ENGINE --text valid.jsonl

ENGINES holds the environments that the scripts beside this one make, MODELS what make_models.py
made. ENGINE is mlx, vllm or llamacpp. Models that an engine does not run are tried too: what it
says of them is what the runtime matrix says. Exit code 1 where a model has a fault that is not
known, or where one that was refused runs now.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import statetrim as st
from statetrim.artifacts.verification import Verification

LAYOUTS = ("qwen3_next", "qwen3_5_text")
SQUARES = ("64x64-refitted", "32x32-refitted", "16x16-refitted")
MLX = ("64x128", "32x128", "64x64", "32x32", "16x16", *SQUARES)
HYBRID = [f"{width}x{width}-refitted" for width in (48, 32, 24, 20, 16, 12)]
RUNS: dict[str, dict[str, tuple[list[str], list[str]]]] = {
    # engine -> original -> cuts that run, cuts that are refused
    "mlx": {
        f"{layout}-128": ([f"{layout}-{s}" for s in MLX], [])
        for layout in ("qwen3_next", "qwen3_5")
    },
    "llamacpp": {
        f"{layout}-128": (
            [f"{layout}-{s}" for s in SQUARES],
            [f"{layout}-64x128"],
        )
        for layout in LAYOUTS
    }
    | {"hybrid": ([f"hybrid-{s}" for s in HYBRID], [])},
    "vllm": {
        f"{layout}-128": (
            [f"{layout}-{s}" for s in ("64x64", "64x64-refitted")],
            [f"{layout}-{s}" for s in ("64x128", "32x32-refitted")],
        )
        for layout in LAYOUTS
    },
}
SEQUENCES = {"vllm": 48, "llamacpp": 6}  # sequences: llama.cpp is asked token by token


def report_lines(verification: Verification) -> Iterator[str]:
    """All that was found, a line a figure."""
    yield f"# {verification.models[0]} and its cuts: {verification.version or verification.engine}, {verification.dtype}"
    for agreement in verification.agreements:
        change = (
            verification.agreement_change(agreement.model, agreement.kind)
            if agreement.model != verification.models[0]
            else None
        )
        difference = agreement.largest_difference
        yield (
            f"{agreement.model}, {agreement.kind}: {sum(agreement.agreed)} of {sum(agreement.places)} choices as "
            f"transformers, largest gap {agreement.largest_gap:.2g}, {agreement.different_tokens} different "
            f"tokens; by float32 {100 * agreement.share('agreed_float32'):.2f} %, the dtype itself "
            f"{100 * agreement.share('own'):.2f} %"
            + (f"; log-probability within {difference:.2g}" if difference is not None else "")
            + (f"; beside the original {change.estimate:+.2f} points "
               f"({change.low:+.2f} to {change.high:+.2f})" if change else "")
        )  # fmt: skip
    for name, refusal in verification.refusals.items():
        yield f"{name}: refused: {refusal}"
    for kind in (verification.faults, verification.notes):
        yield from (f"{name}: {text}" for name, texts in kind.items() for text in texts)


def unexpected(verification: Verification, refused: list[str]) -> list[str]:
    """Models that run and should not, or have a fault that is not a known refusal."""
    return [
        name
        for name in verification.models
        if (name in verification.refusals) != (name in refused)
        or (name in verification.faults) != (name in refused)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engines", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("engine", choices=RUNS)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--count", type=int, help="sequences")
    options = parser.parse_args()
    wrong: list[str] = []
    for original, (cuts, refused) in RUNS[options.engine].items():
        if not (options.models / original).exists():
            print(f"{original} is not among the models, so it was not run", flush=True)
            continue
        verification = st.verify(
            [options.models / name for name in (*cuts, *refused)],
            baseline=options.models / original,
            engine=options.engine,
            python=options.engines / options.engine / "bin" / "python",
            text=options.text,
            count=options.count or SEQUENCES.get(options.engine, 24),
            options={"kv_cache_memory_bytes": 2**28} if options.engine == "vllm" else None,
        )
        path = options.models / f"{options.engine}-{original}.json"
        verification.save(path)
        print("\n".join(report_lines(verification)), flush=True)
        wrong += unexpected(verification, refused)
    if wrong:
        print("not as known:", *wrong)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
