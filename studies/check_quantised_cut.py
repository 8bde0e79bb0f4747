"""`evaluate` and `verify` a model and its cut as public tools quantised them.

    python studies/check_quantised_cut.py --work DIR --text TEXT --results FILE --tools PYTHON \
        --llamacpp PYTHON

DIR holds what `quantise_cut.py` wrote. `evaluate` measures every checkpoint against the original in
16 bits. `verify` runs the cut and the original of each tool in transformers, in the environment of
the tools, and both in llama.cpp by each type of `quantise_gguf.py`. Finished rows are kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import statetrim as st
from arguments import study_parser

TOOLS = (
    "none", "llm-compressor-FP8-dynamic", "llm-compressor-W4A16", "llm-compressor-NVFP4",
    "torchao-INT8", "AutoRound-W4A16", "ModelOpt-FP8", "ModelOpt-NVFP4",
)  # fmt: skip
GGUF_TYPES = ("F32", "Q8_0", "Q4_K_M")
SCORED: dict[str, Any] = {"tasks": ["text"], "limit": 8, "progress": False}
VERIFIED: dict[str, Any] = {"count": 4, "length": 64, "generate": 8, "progress": False}


def main() -> None:
    """Run what the results lack, and write them after every row."""
    parser = study_parser(__doc__, "work", "text", "results", "tools", "llamacpp")
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    if options.results.exists():
        rows = json.loads(options.results.read_text())
    for tool in TOOLS:
        original, cut = options.work / f"original-{tool}", options.work / f"cut-{tool}"
        if tool not in rows:
            rows[tool] = {
                "evaluate": outcome(evaluate, original, cut, options),
                "verify": outcome(verify_in_transformers, original, cut, options),
            }
            save(rows, options.results)
    for kind in GGUF_TYPES:
        if kind not in rows:
            rows[kind] = {"verify": outcome(verify_in_llamacpp, kind, options)}
            save(rows, options.results)


def save(rows: dict[str, Any], path: Path) -> None:
    print(json.dumps(rows, indent=1), flush=True)
    path.write_text(json.dumps(rows, indent=2) + "\n")


def outcome(step: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What the step gave, or the sentence with which it was refused, without the directory."""
    try:
        return step(*arguments)
    except st.StatetrimError as refusal:
        return {"refused": str(refusal).replace(f"{arguments[-1].work}/", "")}


def evaluate(original: Path, cut: Path, options: Any) -> dict[str, Any]:
    """Perplexity, and KL divergence from the original in 16 bits."""
    baseline = options.work / "original-none"
    models = [model for model in (original, cut) if model != baseline]
    scores = st.evaluate(models, baseline=baseline, text=options.text, **SCORED).scores
    return {f"{score.model} {score.metric}": round(score.value, 5) for score in scores}


def verify_in_transformers(original: Path, cut: Path, options: Any) -> dict[str, Any]:
    return agreement(
        st.verify(
            cut, baseline=original, engine="transformers", engine_python=options.tools,
            text=options.text, dtype="bfloat16", **VERIFIED,
        )
    )  # fmt: skip


def verify_in_llamacpp(kind: str, options: Any) -> dict[str, Any]:
    """The 16-bit models, converted and quantised on the way into llama.cpp."""
    folder = options.llamacpp.parents[1] / "llama.cpp"
    converter = "convert_hf_to_gguf.py" if kind == "F32" else "convert_and_quantise.py"
    os.environ["LLAMA_FILE_TYPE"] = kind
    return agreement(
        st.verify(
            options.work / "cut-none", baseline=options.work / "original-none", engine="llamacpp",
            engine_python=options.llamacpp, text=options.text, dtype="float32",
            engine_options={"converter": str(folder / converter)}, **VERIFIED,
        )
    )  # fmt: skip


def agreement(verification: st.Verification) -> dict[str, Any]:
    """Share of equal choices by model and kind of text, refusals and faults."""
    shares = {f"{row.model}, {row.kind}": round(row.share(), 4) for row in verification.agreements}
    result: dict[str, Any] = {"engine": verification.version, "agreed": shares}
    return result | {"refusals": verification.refusals, "faults": verification.faults}


if __name__ == "__main__":
    main()
