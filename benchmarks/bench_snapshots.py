"""Time of encoding and decoding states compared with plain int8, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/bench_snapshots.py

States are random with singular values that fall like exp(-i / 3), for LAYERS layers of 48 heads of
128x128; times are CPU time, the best of eight, scaled to 48 layers (144 MiB in float32). The table
below estimates a GPU: operations and bytes of memory per head, without measuring one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from statetrim.snapshots.coding import decode, encode

LAYERS, HEADS, WIDTH, RANK = 4, 48, 128, 16


def states(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(HEADS, WIDTH, WIDTH, generator=generator)).Q for _ in range(2)
    )
    state: Tensor = (left * (torch.exp(-torch.arange(WIDTH) / 3) + 1e-3)) @ right.mT
    return state


def metric(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(HEADS, WIDTH, WIDTH, generator=generator)
    gram = torch.eye(WIDTH) + 0.3 * rows @ rows.mT / WIDTH
    factor: Tensor = torch.linalg.cholesky(gram, upper=True)
    return factor


def int8(state: Tensor) -> tuple[Tensor, Tensor]:
    step = state.abs().amax(-1, keepdim=True) / 127
    return (state / step).round_().to(torch.int8), step.half()


def best(runs: dict[str, Callable[[], object]], rounds: int = 8) -> dict[str, float]:
    """Milliseconds of CPU time for 48 layers. Runs alternate, so that a busy machine slows all."""
    times = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.thread_time()
            run()
            times[name] = min(times[name], 1000 * (time.thread_time() - began) * 48 / LAYERS)
    return times


def main() -> None:
    layers, metrics = [states(n) for n in range(LAYERS)], [metric(n) for n in range(LAYERS)]
    together = torch.cat(layers)
    rounded, coded = [int8(x) for x in layers], [encode(x) for x in layers]
    coded_together = encode(together)
    errors = [(decode(y) - x).norm(dim=(1, 2)) for x, y in zip(layers, coded, strict=True)]
    worst = float((torch.cat(errors) / together.norm(dim=(1, 2))).max())
    share = sum(x.nbytes for x in coded) / together.nbytes
    print(f"within 0.05: {100 * share:.1f} % of float32, worst error {worst:.4f}")
    encoding: dict[str, Callable[[], object]] = {
        "int8": lambda: [int8(x) for x in layers],
        "ours": lambda: [encode(x) for x in layers],
        "ours, all layers at once": lambda: encode(together),
        "ours in a metric": lambda: [
            encode(x, 0.05, w) for x, w in zip(layers, metrics, strict=True)
        ],
    }
    decoding: dict[str, Callable[[], object]] = {
        "int8": lambda: [x.float() * step for x, step in rounded],
        "ours": lambda: [decode(x) for x in coded],
        "ours, all layers at once": lambda: decode(coded_together),
    }
    for action, runs in (("encode", encoding), ("decode", decoding)):
        times = best(runs)
        for name, milliseconds in times.items():
            print(f"{action}, {name}: {milliseconds:.0f} ms, {milliseconds / times['int8']:.1f}x")
    square = WIDTH * WIDTH
    steps = {
        "metric x state": 2 * square * WIDTH,
        "vectors, three products": 3 * 2 * square * RANK,
        "basis and eigenvectors": 7 * WIDTH * RANK**2 + 25 * RANK**3,
        "check": 2 * square * RANK,
    }
    for name, operations in steps.items():
        print(f"{name}: {operations / 1e6:.2f} MFLOP a head")
    moved = 4 * square * (2 + 3 + 3)  # norms, products, check: a state in float32 each
    print(
        f"about {moved / 2**20:.2f} MiB of memory traffic a head to encode, "
        f"{4 * square * 1.1 / 2**20:.2f} to decode; int8 {4 * square * 1.25 / 2**20:.2f}"
    )


if __name__ == "__main__":
    main()
