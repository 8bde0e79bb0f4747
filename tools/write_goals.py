"""Fill results/goals.md: which levers give 1.5 to 4 times the sequences of released models, by the
engines' arithmetic alone.

python tools/write_goals.py
"""

from pathlib import Path

import statetrim as st
from statetrim.cut.request import parse_request
from statetrim.serving.candidates import FLAG_DTYPE, Goal, candidate_targets
from statetrim.serving.engines import find_engine
from statetrim.serving.options import CacheOptions

ROOT = Path(__file__).parents[1]
PAGE, CONFIGS = ROOT / "results" / "goals.md", ROOT / "tests" / "data" / "hub_configs"
GAINS = ("1.5x", "2x", "3x", "4x")


def table() -> str:
    """A row per engine and state; models that differ in the format of their weights share it."""
    header = ["model", "engine", "sequences", "flag alone", *GAINS]
    lines = [f"| {' | '.join(header)} |", "|---|---|" + "---:|" * 2 + "---|" * len(GAINS)]
    names: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(CONFIGS.glob("*_config.json")):
        name = path.name.removesuffix("_config.json").partition("--")[2]
        for key in ("vllm", "sglang"):
            names.setdefault(tuple(cells(st.open(path), key)), []).append(name)
    lines += [f"| {', '.join(names[row])} | {' | '.join(row)} |" for row in names]
    return "\n".join(lines)


def cells(model: st.Checkpoint, key: str) -> list[str]:
    """The engine, its sequences in 40 GiB and 4,096 tokens, and what reaches each gain."""
    engine = find_engine(key)
    goals = []
    for gain in GAINS:
        serving = CacheOptions(memory_gib=40.0).in_engine(engine)
        goals.append(Goal(model, parse_request(gain), engine, serving))
    goal = goals[0]
    flag = f"{goal.gain(model.geometry, FLAG_DTYPE):.2f}x" if goal.has_dtype_lever else "none"
    row = [engine.name, f"{goal.baseline:,.1f}", flag]
    return [*row, *map(levers, goals)]


def levers(goal: Goal) -> str:
    """The flag if it is enough; else the cut of heads and the one of channels that keep most, with
    the flag if there is one; else the most that can be had."""
    if goal.has_dtype_lever and goal.is_reached(goal.model.geometry, FLAG_DTYPE):
        return "the flag"
    dtype = FLAG_DTYPE if goal.has_dtype_lever else goal.default_dtype
    try:
        targets = candidate_targets(goal, dtype)
    except st.StatetrimError as error:
        return str(error).partition("the most is ")[2].partition(",")[0] + " at most"
    most = {}
    for target in sorted(targets, key=lambda target: target.share):
        most["head" in target.axes, len(target.axes) > 1] = target
    cuts = " or ".join(f"`{target}`" for target in sorted(set(most.values()), key=str))
    return f"{cuts}{', with the flag' if goal.has_dtype_lever else ''}"


def filled(page: str) -> str:
    """`page` with the table between its marks."""
    start, mark, rest = page.partition("<!-- goals -->\n")
    return f"{start}{mark}\n{table()}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
