"""Run `trim --for ENGINE` on the Qwen layouts, and verify the results in real engines.

    python tools/engines/trim_for.py ENGINES MODELS OUT --text train.jsonl --test valid.jsonl

ENGINES holds the environments that the scripts in this folder make, MODELS the output of
make_models.py. Prints for every engine of `--for` the shape, refusals by the engine matrix and by
`trim`, and, if the engine runs on this machine, the result of `verify`. Exit code 1 if a shape is
refused or a result has a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path

from check_engines import change_text

import statetrim as st
from statetrim.commands import app
from statetrim.serving.engine_names import ENGINE_NAMES
from statetrim.serving.engines import Shape, compatibility_of_shape

LAYOUTS = ("qwen3_next-128", "qwen3_5_text-128", "qwen3_5-128")  # MLX-LM does not run qwen3_5_text
RUN_BY = {"mlx": "mlx", "llamacpp": "llamacpp", "vllm-cpu": "vllm"}  # value of --for -> environment
OPTIONS = {"vllm": {"kv_cache_memory_bytes": 2**28}}


def trim_output(model: Path, engine: str, out: Path, text: Path, tokens: str) -> str:
    """Run `statetrim trim` and return what it prints."""
    printed = io.StringIO()
    command = ["trim", str(model), "--for", engine, "--text", str(text), "--tokens", tokens]
    command += ["--limit", "4", "--no-control", "-o", str(out)]
    with contextlib.redirect_stdout(printed):
        app(command, standalone_mode=False)
    return printed.getvalue()


def refusals(out: Path, engine: str) -> list[str]:
    """Hardware on which the engine does not serve the shape, by the engine matrix."""
    cut = st.open(out)
    lines = compatibility_of_shape(str(cut.config["model_type"]), Shape.from_geometry(cut.geometry))
    rows = [line for line in lines if line.engine == ENGINE_NAMES[engine] and line.current]
    return [f"{line.hardware}: {line.verdict}" for line in rows if not line.serves]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engines", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--tokens", default="4k")
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, choices=LAYOUTS)
    parser.add_argument("--only", nargs="+", default=list(ENGINE_NAMES), choices=ENGINE_NAMES)
    options = parser.parse_args()
    failed = False
    for layout in options.layouts:
        for engine in options.only:
            model, out = options.models / layout, options.out / f"{layout}-{engine}"
            printed = trim_output(model, engine, out, options.text, options.tokens)
            matrix_refusals = refusals(out, engine)
            warnings = [line.strip() for line in printed.splitlines() if "refuse" in line]
            own_warnings = [line for line in warnings if ENGINE_NAMES[engine] in line]
            shape = Shape.from_geometry(st.open(out).geometry)
            matrix_text, trim_text = matrix_refusals or "no refusal", own_warnings or "no refusal"
            print(
                f"{layout} --for {engine}: {shape}; matrix: {matrix_text}; trim: {trim_text}",
                flush=True,
            )
            failed |= bool(matrix_refusals or own_warnings)
            if engine not in RUN_BY:
                continue
            environment = RUN_BY[engine]
            verification = st.verify(
                out,
                baseline=model,
                engine=environment,
                engine_python=options.engines / environment / "bin" / "python",
                text=options.test,
                count=8,
                length=120,
                engine_options=OPTIONS.get(environment),
            )
            verification.save(options.out / f"{layout}-{engine}.json")
            for agreement in verification.agreements:
                change = None
                if agreement.model != layout:
                    change = verification.agreement_change(agreement.model, agreement.kind)
                engine_text = f"{verification.version}, {verification.dtype}"
                share = f"{sum(agreement.agreed)} of {sum(agreement.places)} as transformers"
                line = f"{engine_text}: {agreement.model}, {agreement.kind}: {share}"
                print(f"  {line}{change_text(change)}", flush=True)
            for name, faults in verification.faults.items():
                print(f"  fault of {name}: {'; '.join(faults)}")
            failed |= bool(verification.faults)
    sys.exit(failed)


if __name__ == "__main__":
    main()
