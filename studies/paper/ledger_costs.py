"""Costs calculated from shapes and counts: a projection in an engine, recoveries on one GPU."""

from __future__ import annotations

from claims import KEPT, METHODS, SHORT, Evidence
from figures import table

HEADS, CHANNELS, KEPT_CHANNELS, HIDDEN = 16, 128, 64, 2048  # of DeltaNet 1.3B, cut in half
PARAMETERS = 1.366e9  # of fla-hub/delta_net-1.3B-100B
RECOVERY = 32 * 1024 * 2048  # tokens of the paper's recovery: 32k samples of 2,048
PEAK, USED = 989e12, 0.4  # FLOP/s of an H100 in bfloat16 (dense), and the part that we assume
PASSES = 8  # FLOP a parameter and token: 6 for the student's two passes, 2 for the teacher's one
SAMPLES = 3


def engine_text(_: Evidence) -> str:
    """Multiplications and memory that a projection after SiLU would cost an engine."""
    per_side = HEADS * CHANNELS * KEPT_CHANNELS  # multiplications of queries; keys need as many
    projections = 4 * HIDDEN * HIDDEN  # queries, keys, values, output
    return (
        f"For {HEADS} heads of {CHANNELS} channels cut to {KEPT_CHANNELS}, that is 2 x "
        f"{per_side:,} multiplications per token and layer. The four projections of a layer with "
        f"hidden size {HIDDEN:,} take {projections:,}, so it adds "
        f"{2 * per_side / projections:.1%}. The matrix takes {2 * per_side // 1024} KiB per layer "
        f"in bfloat16."
    )


def hours(tokens: float) -> float:
    return PASSES * PARAMETERS * tokens / (PEAK * USED) / 3600


def gpu_table(_: Evidence) -> str:
    runs = SAMPLES * (len(KEPT) * len(METHODS) + 1)  # and a control each
    flop = PASSES * PARAMETERS * RECOVERY
    rows = [
        ["tokens of one recovery (32k samples of 2,048)", f"{RECOVERY:,}"],
        ["compared with the recovery measured here", f"{RECOVERY / SHORT:,.0f} times"],
        [f"one recovery of {PARAMETERS / 1e9:.2f}B parameters", f"{flop:.1e} FLOP"],
        [
            f"its time at {USED:.0%} of an H100's {PEAK / 1e12:.0f} TFLOP/s",
            f"{hours(RECOVERY):.1f} h",
        ],
        ["recoveries of one model, three samples", f"{runs}, {runs * hours(RECOVERY):.0f} h"],
        ["the same with `--samples 1`", f"{runs // 3}, {runs / 3 * hours(RECOVERY):.0f} h"],
    ]
    return table(["on one H100, calculated and not measured", ""], rows)
