"""Speed of the portable recurrences relative to alternatives, measured in one run.

    python benchmarks/bench_delta_rule.py

Alternatives run in turn and the best time of each counts, so that other load affects all equally.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
# transformers takes fla's kernels whenever fla can be imported, and they cannot run on a CPU.
sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # type: ignore[assignment]

import torch  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as stock  # noqa: E402

from helpers.step_by_step import step_by_step  # noqa: E402
from statetrim.portable import kernels as rules  # noqa: E402
from statetrim.portable.kernels import DeferredState  # noqa: E402


def best_times(competitors: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(competitors, float("inf"))
    for _ in range(rounds):
        for name, run in competitors.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def training(head_dim: int, rounds: int) -> None:
    """Forward and backward at batch 4, 1,024 tokens, 4 heads."""
    torch.manual_seed(0)
    shape = (4, 1024, 4)
    q, k = (rules.l2_normalized(torch.randn(*shape, head_dim)) for _ in range(2))
    v, g, beta = torch.randn(*shape, head_dim), -torch.rand(shape), torch.rand(shape)
    leaves = [x.requires_grad_() for x in (q, k, v, g, beta)]
    weight = torch.randn(*shape, head_dim)

    def with_backward(rule: Callable[..., tuple[torch.Tensor, object]]) -> None:
        output, _ = rule(q, k, v, g=g, beta=beta)
        torch.autograd.grad((output * weight).sum(), leaves)

    chunked = best_times(
        {
            "ours": lambda: with_backward(rules.chunk_gated_delta_rule),
            "stock": lambda: with_backward(stock.torch_chunk_gated_delta_rule),
        },
        rounds,
    )
    steps = best_times({"steps": lambda: with_backward(step_by_step)}, 2)
    print(
        f"training, {head_dim}x{head_dim}: chunked {1e3 * chunked['ours']:.0f} ms; "
        f"{steps['steps'] / chunked['ours']:.1f}x step by step, "
        f"{chunked['stock'] / chunked['ours']:.2f}x transformers"
    )


@torch.no_grad()
def decoding(batch: int, heads: int, head_dim: int, rounds: int) -> None:
    """One token for every sequence, relative to one in-place multiplication of the state."""
    state = 0.1 * torch.randn(batch, heads, head_dim, head_dim)
    q, k, v = (rules.l2_normalized(torch.randn(batch, heads, head_dim)) for _ in range(3))
    beta, decay = torch.rand(batch, heads), 1 - 0.01 * torch.rand(batch, heads, 1)
    plain, gated = DeferredState(state.clone()), DeferredState(state.clone())
    tokens = 2 * plain.pending_keys.shape[1]  # whole cycles of waiting and writing
    best = best_times(
        {
            "multiply": lambda: [state.mul_(0.999999) for _ in range(tokens)],
            "delta rule": lambda: [plain.step(q, k, v, beta, None) for _ in range(tokens)],
            "gated": lambda: [gated.step(q, k, v, beta, decay) for _ in range(tokens)],
        },
        rounds,
    )
    ratios = {name: best[name] / best["multiply"] for name in ("delta rule", "gated")}
    print(
        f"decoding, state {state.numel() * 4 / 2**20:.0f} MiB: "
        f"multiply {1e6 * best['multiply'] / tokens:.0f} us; "
        + ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for head_dim in (128, 64):
        training(head_dim, arguments.rounds)
    for batch, heads in ((1, 16), (16, 16), (64, 32), (128, 32)):
        decoding(batch, heads, 128, arguments.rounds)


if __name__ == "__main__":
    main()
