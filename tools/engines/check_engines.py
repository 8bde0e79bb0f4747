"""Run `statetrim verify` on originals and cuts in a real engine, and compare with known results.

    python tools/engines/check_engines.py ENGINES MODELS ENGINE --text valid.jsonl

ENGINES holds the environments that the scripts in this folder make, MODELS the output of
make_models.py. ENGINE is mlx, vllm or llamacpp. Models that the engine refuses are tried too, to
confirm the engine matrix. Exit code 1 if a model has an unknown fault, or a refused one now runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import statetrim as st
from statetrim.artifacts.verification import Verification
from statetrim.maths.paired import Interval

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
SEQUENCES = {"vllm": 48, "llamacpp": 6}  # few for llama.cpp, which gets a request per token


def report_lines(verification: Verification) -> Iterator[str]:
    """The results in text, a line per model and kind, refusal, fault and note."""
    original, version = verification.models[0], verification.version or verification.engine
    yield f"# {original} and its cuts: {version}, {verification.dtype}"
    for agreement in verification.agreements:
        line = (
            f"{agreement.model}, {agreement.kind}: {sum(agreement.agreed)} of "
            f"{sum(agreement.places)} choices as transformers, largest gap "
            f"{agreement.largest_gap:.2g}, {agreement.different_tokens} different tokens; by "
            f"float32 {100 * agreement.share('agreed_float32'):.2f} %, the dtype itself "
            f"{100 * agreement.share('own'):.2f} %"
        )
        if agreement.largest_difference is not None:
            line += f"; log-probability within {agreement.largest_difference:.2g}"
        if agreement.model != original:
            line += change_text(verification.agreement_change(agreement.model, agreement.kind))
        yield line
    for name, refusal in verification.refusals.items():
        yield f"{name}: refused: {refusal}"
    for messages in (verification.faults, verification.notes):
        for name, texts in messages.items():
            for text in texts:
                yield f"{name}: {text}"


def change_text(change: Interval | None) -> str:
    """Change of agreement against the original, in points."""
    if change is None:
        return ""
    interval = f"({change.low:+.2f} to {change.high:+.2f})"
    return f"; against the original {change.estimate:+.2f} points {interval}"


def unexpected(verification: Verification, refused: list[str]) -> list[str]:
    """Models that run although listed as refused, or have a fault and are not listed."""
    names = []
    for name in verification.models:
        is_refused, has_fault = name in verification.refusals, name in verification.faults
        if (is_refused, has_fault) != (name in refused, name in refused):
            names.append(name)
    return names


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
            engine_python=options.engines / options.engine / "bin" / "python",
            text=options.text,
            count=options.count or SEQUENCES.get(options.engine, 24),
            engine_options={"kv_cache_memory_bytes": 2**28} if options.engine == "vllm" else None,
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
