"""What a smaller state is worth in vLLM's prefix cache: prompts through its own scheduler.

    just prefix-replay ENGINES

`run` needs the environment of vLLM that `just engines` makes; no weights are read, and what the
scheduler plans counts as computed. A line for each workload and way to serve: tokens of prompts,
those found in the cache, and those computed again although an earlier request had them. `--fault`
plants one, hashes of half a block: more is found than any earlier request had.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import runner

ROOT = Path(__file__).parents[1]
MODEL = "Qwen3.5-27B"
BASE = {
    "model": MODEL, "cut": {}, "state": "float32", "kv": "bfloat16", "speculative": 0,
    "prefix_caching": True, "devices": 1, "context": 32768, "memory_gib": 40, "replay": False,
}  # fmt: skip
FP8_MTP = {"kv": "fp8", "speculative": 3}  # of vllm issue 45238: blocks of 1600
SMALL = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
WAYS: dict[str, dict[str, Any]] = {
    "original": {},
    "16-bit state": {"state": "bfloat16"},
    "half of the heads": {"cut": {"linear_num_key_heads": 8, "linear_num_value_heads": 24}},
    "64x64": {"cut": SMALL},
}
SYSTEM, TURNS = (300, 1000, 3000), (2, 5, 20)
WORKLOADS = {
    **{f"system prompt of {tokens}": BASE for tokens in SYSTEM},
    **{f"conversations of {turns} turns": BASE for turns in TURNS},
    "2,000 tokens, 80 % shared; fp8, MTP": BASE | FP8_MTP,
}
Request = tuple[list[int], int]
"""A prompt, and the tokens that are generated."""


def shared_prompts(system: int, own: tuple[int, int], seed: int = 0) -> Iterator[Request]:
    """Prompts of many users, who share a system prompt."""
    draw = random.Random(seed)
    common = [draw.randrange(1000, 9000) for _ in range(system)]
    for _ in range(32):
        question = [draw.randrange(1000, 9000) for _ in range(draw.randint(*own))]
        yield common + question, 16


def conversations(turns: int, answer: int, seed: int = 0) -> Iterator[Request]:
    """Four conversations, turn by turn; each sends its history with the next message."""
    draw = random.Random(seed)
    common = [draw.randrange(1000, 9000) for _ in range(200)]
    histories = [list(common) for _ in range(4)]
    for _ in range(turns):
        for history in histories:
            history += [draw.randrange(1000, 9000) for _ in range(draw.randint(30, 200))]
            length = draw.randint(50, 150)
            yield list(history), length
            history += [answer] * length


def requests_of(workload: str, answer: int) -> Iterator[Request]:
    number = next((int(word) for word in workload.split() if word.isdigit()), 0)
    if workload.startswith("system"):
        return shared_prompts(number, (30, 200))
    if workload.startswith("conversations"):
        return conversations(number, answer)
    return shared_prompts(1600, (400, 400))


def shared_with(prompt: list[int], earlier: list[list[int]]) -> int:
    """Tokens at the start of a prompt that an earlier request had; the last is always computed."""
    longest = 0
    for tokens in earlier:
        if tokens[:longest] == prompt[:longest]:
            pairs = zip(tokens[longest:], prompt[longest:], strict=False)
            longest += next((i for i, (a, b) in enumerate(pairs) if a != b),
                            min(len(tokens), len(prompt)) - longest)  # fmt: skip
    return min(longest, len(prompt) - 1)


def replay(workload: str, way: str, fault: bool) -> dict[str, Any]:
    import capacity_grid
    import scheduling

    configs = json.loads((ROOT / "docs/calculator/configs.json").read_text())
    settings, cache = capacity_grid.laid_out(WORKLOADS[workload] | WAYS[way], configs[MODEL])
    served = scheduling.Served(settings, cache)
    if fault:
        served.hash_half_of_a_block()
    earlier: list[list[int]] = []
    total = cached = known = wrong = 0
    for prompt, length in requests_of(workload, scheduling.ANSWER):
        shared = shared_with(prompt, earlier)
        hit = served.answer(prompt, length)
        wrong += hit > shared
        total, cached, known = total + len(prompt), cached + hit, known + shared
        earlier.append(prompt + [scheduling.ANSWER] * length)
    return {
        "vllm": capacity_grid.vllm.__version__,
        "block": settings.cache_config.block_size,
        "tokens": total,
        "cached": cached,
        "again": known - cached,
        "found without cause": wrong,
    }


def run() -> None:
    parser = runner.study_parser(__doc__, results="results/prefixes.jsonl")
    parser.add_argument("--fault", action="store_true", help="plant a fault, in one workload")
    options = parser.parse_args()
    rows = runner.Rows(options.results)
    cases: list[runner.Row] = [
        {"workload": workload, "way": way, "fault": False} for workload in WORKLOADS for way in WAYS
    ]
    if options.fault:
        cases = [{"workload": "system prompt of 1000", "way": "64x64", "fault": True}]
    rows.measure_missing(cases, lambda case: replay(**case))


def page(results: Path) -> None:
    rows = runner.Rows(results / "prefixes.jsonl")
    lines = []
    for workload in WORKLOADS:
        ways = [rows.select(workload=workload, way=way, fault=False)[0] for way in WAYS]
        cells = [f"{100 * row['cached'] / row['tokens']:.0f} % ({row['again']:,})" for row in ways]
        lines.append([workload, *cells])
    blocks = [
        str(rows.select(workload=next(iter(WORKLOADS)), way=way, fault=False)[0]["block"])
        for way in WAYS
    ]
    table = runner.table(["", *WAYS], [["tokens of a block", *blocks], *lines])
    fault = rows.select(fault=True)[0]["found without cause"]
    others = sum(row["found without cause"] for row in rows.select(fault=False))
    text = (
        "A planted fault, hashes of half a block, is found: more tokens are cached than an earlier "
        f"request had, for {fault} of 32 prompts. In the other runs this happened {others} times."
    )
    runner.fill(results / "prefixes.md", {"replay": table, "fault": text})
    draw(rows, results / "prefixes.png")


def draw(rows: runner.Rows, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for i, way in enumerate(WAYS):
        lines = [rows.select(workload=workload, way=way, fault=False)[0] for workload in WORKLOADS]
        places = [number + 0.2 * (i - 1.5) for number in range(len(lines))]
        axes.barh(places, [100 * row["cached"] / row["tokens"] for row in lines], 0.18, label=way)
    axes.set_yticks(range(len(WORKLOADS)), list(WORKLOADS))
    axes.invert_yaxis()
    axes.set_xlabel("tokens of prompts found in vLLM's prefix cache, %")
    figure.legend(loc="outside upper center", ncols=len(WAYS), fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    runner.start(page, run=run)
