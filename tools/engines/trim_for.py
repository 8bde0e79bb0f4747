"""`trim --for ENGINE` on both Qwen layouts, and its result in the real engine.

    python tools/engines/trim_for.py ENGINES MODELS OUT --text train.jsonl --test valid.jsonl

ENGINES holds the environments that the scripts beside this one make, MODELS what make_models.py
made. Every engine that `--for` knows: the shape it gives, whether the matrix serves that, what
`trim` says of refusals; and, where the engine runs on this machine, what `verify` finds. Exit code
1 where a shape is refused or a result has a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path

import statetrim as st
from statetrim.cli import app
from statetrim.serving.engine_names import ENGINE_NAMES
from statetrim.serving.engines import Shape, compatibility_of_shape

LAYOUTS = ("qwen3_next-128", "qwen3_5_text-128", "qwen3_5-128")  # MLX-LM takes no bare text type
RUN_BY = {"mlx": "mlx", "llamacpp": "llamacpp", "vllm-cpu": "vllm"}  # --for -> environment
OPTIONS = {"vllm": {"kv_cache_memory_bytes": 2**28}}


def trimmed(model: Path, engine: str, out: Path, text: Path, tokens: str) -> str:
    """What `statetrim trim` prints."""
    said = io.StringIO()
    command = ["trim", str(model), "--for", engine, "--text", str(text), "--tokens", tokens]
    command += ["--limit", "4", "--no-benchmark", "--no-control", "-o", str(out)]
    with contextlib.redirect_stdout(said):
        app(command, standalone_mode=False)
    return said.getvalue()


def refusals(out: Path, engine: str) -> list[str]:
    """What the matrix says against the shape, on any hardware."""
    made = st.open(out)
    lines = compatibility_of_shape(
        str(made.config["model_type"]), Shape.from_geometry(made.geometry)
    )
    own = [line for line in lines if line.engine == ENGINE_NAMES[engine] and line.current]
    return [f"{line.hardware}: {line.verdict}" for line in own if not line.serves]


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
    wrong = False
    for layout in options.layouts:
        for engine in options.only:
            model, out = options.models / layout, options.out / f"{layout}-{engine}"
            said = trimmed(model, engine, out, options.text, options.tokens)
            against = refusals(out, engine)
            told = [line.strip() for line in said.splitlines() if "refuse" in line]
            about = [line for line in told if ENGINE_NAMES[engine] in line]
            shape = Shape.from_geometry(st.open(out).geometry)
            matrix, spoken = against or "no refusal", about or "no refusal"
            print(f"{layout} --for {engine}: {shape}; matrix: {matrix}; trim: {spoken}", flush=True)
            wrong |= bool(against or about)
            if engine not in RUN_BY:
                continue
            environment = RUN_BY[engine]
            found = st.verify(
                out,
                baseline=model,
                engine=environment,
                python=options.engines / environment / "bin" / "python",
                text=options.test,
                count=8,
                length=120,
                options=OPTIONS.get(environment),
            )
            found.save(options.out / f"{layout}-{engine}.json")
            for one in found.agreements:
                moved = found.agreement_change(one.model, one.kind)
                beside = "" if one.model == layout or moved is None else (
                    f"; beside the original {moved.estimate:+.2f} points "
                    f"({moved.low:+.2f} to {moved.high:+.2f})")  # fmt: skip
                share = f"{sum(one.agreed)} of {sum(one.places)} as transformers"
                where = f"{found.version}, {found.dtype}: {one.model}, {one.kind}"
                print(f"  {where}: {share}{beside}", flush=True)
            for name, faults in found.faults.items():
                print(f"  fault of {name}: {'; '.join(faults)}")
            wrong |= bool(found.faults)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
