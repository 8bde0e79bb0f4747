"""Record the cache figures of vLLM at startup, for several shapes; run with vLLM's Python.

    python tools/engines/record_vllm_startup.py tests/data/vllm-startup.json

Weights are dummies, so only a config is needed; each case runs in its own process. The figures are
read from vLLM's log and objects; statetrim is not imported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GIB = 2**30
SHAPES = ((128, 128), (64, 128), (32, 128), (64, 64))
LOG = re.compile(
    r"Setting attention block size to (?P<block_size>\d+)|"
    r"Padding mamba page size by (?P<padding>[\d.]+)%|"
    r"KV cache size: (?P<tokens>[\d,]+) tokens, Maximum concurrency for "
    r"(?P<context>[\d,]+) tokens per request: (?P<concurrency>[\d.]+)x"
)


def cases() -> list[dict[str, object]]:
    common = {"layers": 4, "softmax_every": 4, "memory": 2 * GIB}
    all_cases: list[dict[str, object]] = []
    for caching in (False, True):
        for k, v in SHAPES:
            shape = {"head_k_dim": k, "head_v_dim": v, "prefix_caching": caching}
            all_cases.append({**shape, **common, "context": 1024, "block_size": None})
            if k == v:  # a long context in small blocks
                all_cases.append({**shape, **common, "context": 32768, "block_size": 32})
        # Layers that form groups of unequal size, or of equal size.
        for layers, every in ((7, 4), (6, 2), (5, 3), (7, 2)):
            pattern = {"layers": layers, "softmax_every": every, "memory": GIB}
            shape = {"head_k_dim": 64, "head_v_dim": 64, "prefix_caching": caching}
            all_cases.append({**shape, **pattern, "context": 4096, "block_size": None})
    return all_cases


def config(case: dict[str, int]) -> dict[str, object]:
    """A small config with Qwen3-Next's heads."""
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "dtype": "bfloat16",
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": case["layers"],
        "full_attention_interval": case["softmax_every"],
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": case["head_k_dim"],
        "linear_value_head_dim": case["head_v_dim"],
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,  # vLLM's Qwen3-Next requires experts
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 65536,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "tie_word_embeddings": True,
    }


def start(case: dict[str, int]) -> None:
    """Start one engine in this process; prints its figures as the last line."""
    from vllm import LLM, __version__

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config(case)))
        llm = LLM(
            folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=case["context"],
            max_num_seqs=2,
            enable_prefix_caching=bool(case["prefix_caching"]),
            **({"block_size": case["block_size"]} if case["block_size"] else {}),
        )
    core = llm.llm_engine.engine_core.engine_core
    groups = core.scheduler.kv_cache_config.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    states = [spec for spec in specs if hasattr(spec, "shapes")]
    softmax = [spec for spec in specs if not hasattr(spec, "shapes")]
    cache = llm.llm_engine.vllm_config.cache_config
    figures = {
        "version": __version__,
        "state_shapes": [list(shape) for shape in states[0].shapes],
        "state_dtypes": [str(dtype).removeprefix("torch.") for dtype in states[0].dtypes],
        "page_bytes": states[0].page_size_bytes,
        "block_size": softmax[0].block_size,
        "blocks": core.scheduler.kv_cache_config.num_blocks,
        "concurrency": cache.kv_cache_max_concurrency,
        "groups": len(groups),
    }
    print("\n" + json.dumps(figures), flush=True)


def record(case: dict[str, object]) -> dict[str, object]:
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": str(int(case["memory"]) // GIB),  # type: ignore[call-overload]
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    log: dict[str, str] = {}
    for match in LOG.finditer(done.stdout + done.stderr):
        log |= {name: value for name, value in match.groupdict().items() if value}
    return {"case": case, "vllm": json.loads(done.stdout.splitlines()[-1]), "log": log}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--case", type=json.loads, help="start one engine here (used internally)")
    arguments = parser.parse_args()
    if arguments.case is not None:
        start(arguments.case)
        return
    records: list[dict[str, object]] = []
    for case in cases():
        records.append(record(case))
        print(json.dumps(records[-1]), flush=True)
    lines = ",\n ".join(json.dumps(entry) for entry in records)
    arguments.out.write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
