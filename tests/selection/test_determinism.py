"""Equal seeds give equal plans in every process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import statetrim as st
from statetrim.methods import find_method, method_names

if TYPE_CHECKING:  # another process runs this file as a script, without the helpers
    from helpers.forker import Forker

KEEP = 5
SEED = 3
CALIBRATED = [name for name in method_names() if find_method(name).needs]
WITH_SCORE = [name for name in method_names("key") if name not in ("rand", "ghost")]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in method_names("key")),
    *((name, {"score": side}) for name in WITH_SCORE for side in "qk"),
    ("drrqr", {"normalized": True}),
]

Kept = list[list[list[int]]]  # layer, head, channel


def plans(directory: Path, text: Path) -> list[Kept]:
    """The channels that every method keeps, of keys, then of values, after a new calibration."""
    model = st.open(directory)
    statistics = st.calibrate(model, text, methods=CALIBRATED, tokens=640, length=32)
    key_plans = [
        st.select(model, m, f"{KEEP}x100%", seed=SEED, statistics=statistics, method_options=o)
        for m, o in CASES
    ]
    value_plans = [
        st.select(model, to=f"100%x{KEEP}", method=m, seed=SEED, statistics=statistics)
        for m in method_names("value")
    ]
    tables = [plan.axes["key"].kept for plan in key_plans]
    tables += [plan.axes["value"].kept for plan in value_plans]
    return [[kept.tolist() for kept in layers.values()] for layers in tables]


def test_every_run_gives_the_same_plans(checkpoint: Any, text: Path, warm_forker: Forker) -> None:
    """Another interpreter has other hashes."""
    model = checkpoint("delta_net")
    other = warm_forker.run([__file__, str(model), str(text)], script=True)
    assert other["code"] == 0, other["err"][-2000:]
    assert json.loads(other["out"].splitlines()[-1]) == plans(model, text)


if __name__ == "__main__":
    print(json.dumps(plans(*map(Path, sys.argv[1:]))))
