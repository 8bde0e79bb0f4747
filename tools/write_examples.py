"""Fill the tables of gains in the pages of examples/.

    python tools/write_examples.py

A page names its model and how it is served, as for `statetrim inspect`:
`<!-- gain: Qwen3.5-27B --to 64x64 --engine vllm --memory-gib 16 -->`, up to `<!-- end -->`.
"""

import argparse
import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- gain: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
FROM_PUBLIC_FIGURES: dict[str, dict[str, Any]] = {
    # The model card of Qwen3.5-4B: 32 layers, every fourth with softmax attention.
    "Qwen3.5-4B": {
        "model_type": "qwen3_next", "hidden_size": 2560, "num_hidden_layers": 32,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 8, "dtype": "bfloat16",
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    },
    # The defaults of fla's GatedDeltaNetConfig, which make 1.3 billion parameters.
    "Gated DeltaNet 1.3B": {
        "model_type": "gated_deltanet", "hidden_size": 2048, "num_hidden_layers": 21,
        "num_heads": 6, "head_dim": 256, "expand_v": 2, "conv_size": 4, "dtype": "bfloat16",
    },
}  # fmt: skip
"""Configs of models whose own config is not in docs/calculator/configs.json."""


def filled(page: str) -> str:
    """The page with its table computed again."""
    return PLACE.sub(lambda place: f"{place[1]}{table(place[2])}\n{place[3]}", page)


def table(words: str) -> str:
    """A table of state and sequences, as released, with a 16-bit state, cut, and both."""
    import statetrim as st
    from statetrim.maths.formatting import bytes_text, fit_text
    from statetrim.serving.capacity.compare import gain_text

    arguments = _parser().parse_args(shlex.split(words))
    configs = json.loads((ROOT / "docs/calculator/configs.json").read_text()) | FROM_PUBLIC_FIGURES
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(configs[arguments.model]))
        sizes = st.inspect(folder, **{k: v for k, v in vars(arguments).items() if k != "model"})
    rows = sizes.deployment.capacity
    names = []
    for row in rows:
        names.append(f"{row.shape}, {row.state_dtype}{' (default)' if row.is_default else ''}")
    states = [f"{row.fit.states:g} x {bytes_text(row.fit.state_bytes)}" for row in rows]
    lines = [
        f"| computed for {arguments.model} | {' | '.join(names)} |",
        f"|---|{'---:|' * len(rows)}",
        f"| states of a request | {' | '.join(states)} |",
    ]
    served = next(row.fit for row in rows if row.is_default and not row.is_cut)
    gains = [f"{fit_text(row.fit.sequences)} ({gain_text(row.fit, served)})" for row in rows]
    context = sizes.deployment.context
    title = f"sequences of {context:,} tokens in {arguments.memory_gib:g} GiB of cache"
    return "\n".join([*lines, f"| {title} | {' | '.join(gains)} |"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=str)
    parser.add_argument("--to")
    parser.add_argument("--engine")
    parser.add_argument("--memory-gib", type=float)
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    return parser


def main() -> None:
    for path in sorted((ROOT / "examples").glob("*.md")):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
