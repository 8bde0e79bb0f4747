"""MLX-LM: memory of this process while it generates for several sequences at once.

    python batch_memory.py MODEL SEQUENCES

MODEL holds a `model_file`. Prints as JSON by how many bytes per sequence the process and MLX's
arrays grew, and how many the caches are said to have.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import BatchGenerator

TOKENS = 3  # of a prompt, and generated


def resident() -> int:
    kilobytes = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert kilobytes
    return 1024 * int(kilobytes[1])


def generate(model: Any, sequences: int) -> dict[str, int]:
    """Bytes when all sequences have generated but their last token."""
    sizes = {"completion_batch_size": sequences, "prefill_batch_size": sequences}
    batch = BatchGenerator(model, max_tokens=TOKENS, **sizes)
    batch.insert([[first + at for at in range(TOKENS)] for first in range(sequences)])
    measured = {}
    finished = 0
    while finished < sequences:
        _, responses = batch.next()
        mx.synchronize()
        finished += sum(response.finish_reason is not None for response in responses)
        if len(responses) == sequences and not finished:
            measured = {
                "process": resident(),
                "arrays": mx.get_active_memory(),
                "caches": batch.prompt_cache_nbytes,
            }
    return measured


def main() -> None:
    folder, sequences = sys.argv[1], int(sys.argv[2])
    model, _ = load(folder, trust_remote_code=True)
    mx.eval(model.parameters())
    generate(model, 1)
    before = {"process": resident(), "arrays": mx.get_active_memory(), "caches": 0}
    after = generate(model, sequences)
    growth = {name: (after[name] - before[name]) / sequences for name in before}
    print(json.dumps(growth))


if __name__ == "__main__":
    main()
