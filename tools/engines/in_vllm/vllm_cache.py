"""Groups, blocks and sequences of one model, as vLLM counts them; run with vLLM's own Python.

    python tools/engines/in_vllm/vllm_cache.py MODEL

Prints one line of JSON, for contexts of 1K, 8K and 32K tokens in a cache of 256 MiB.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from vllm import LLM, __version__
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

CONTEXTS = (1024, 8192, 32768)
MEMORY = 2**28


def main() -> None:
    path = Path(sys.argv[1])
    llm = LLM(
        str(path),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=max(CONTEXTS),
        max_num_seqs=2,
        kv_cache_memory_bytes=MEMORY,
        hf_overrides={"max_position_embeddings": max(CONTEXTS)},
    )
    vllm_config: Any = llm.llm_engine.vllm_config
    cache_config = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    sequences = {}
    for context in CONTEXTS:
        vllm_config.model_config.max_model_len = context
        sequences[str(context)] = round(
            get_max_concurrency_for_kv_cache_config(vllm_config, cache_config), 1
        )
    result = {"model": path.name, "vllm": __version__, "memory_mib": MEMORY / 2**20}
    result |= {"groups": len(cache_config.kv_cache_groups), "blocks": cache_config.num_blocks}
    print(json.dumps(result | {"sequences": sequences}), flush=True)


if __name__ == "__main__":
    main()
