"""What recovery gains, compared with the original and with the control (the original after the same
recovery); and the zero-shot tasks."""

from __future__ import annotations

from claims import BEST, METHODS, NAMES, OTHERS, SHORT, Evidence, Outcome
from figures import Row, change, closest_compared, compared, interval, mean, points, verdict
from statetrim.maths.paired import Interval

DELTA_NET = "tiny-delta_net"
CHANCE = {  # the metric of the paper's tables, and what a guess has
    "arc_easy acc_norm": 0.25,
    "arc_challenge acc_norm": 0.25,
    "hellaswag acc_norm": 0.25,
    "winogrande acc": 0.5,
    "piqa acc_norm": 0.5,
    "lambada_openai acc": 0.0,
}


def recovered_cuts(e: Evidence) -> dict[str, tuple[str, float]]:
    """Model and width of the cuts that every method recovered, by label."""
    return {
        f"{name}, {100 - 100 * keep:.0f} % removed": (model, keep)
        for model, name in NAMES.items()
        for keep in e.recovered_widths(model)
    }


def halves(e: Evidence) -> dict[str, str]:
    """Models that were recovered with half of their channels."""
    return {name: model for model, name in NAMES.items() if 0.5 in e.recovered_widths(model)}


def better_after(e: Evidence) -> Outcome:
    cases = {
        case: {
            method: change(e.recovered(method, keep, model), e.before_recovery(method, keep, model))
            for method in METHODS
        }
        for case, (model, keep) in recovered_cuts(e).items()
    }
    return closest_compared("least of five methods, nats: ", cases, "lower")


def below_original(e: Evidence) -> Outcome:
    """The verdict is that of the longest recovery, which is nearest to the paper's."""
    base, shown = e.cut(DELTA_NET, "none"), {}
    for tokens in (e.longest_recovery(), SHORT):
        gaps = {method: change(e.recovered(method, tokens=tokens), base) for method in BEST}
        shown[tokens] = compared(f"after {tokens:,} tokens: ", gaps, "lower")
    text = "; ".join(text_part for text_part, _ in shown.values())
    outcome = next(iter(shown.values()))[1]
    return f"DeltaNet, 50 % removed - untouched original, nats, {text}", outcome


def against_control(e: Evidence, measure: str) -> dict[str, Interval]:
    """Recovered cuts to half of the channels minus the control, by model and method."""
    return {
        f"{name} {method}": change(
            e.recovered(method, model=model), e.recovered("none", model=model), measure
        )
        for name, model in halves(e).items()
        for method in BEST
    }


def below_control(e: Evidence) -> Outcome:
    gaps = against_control(e, "nll")
    tokens = e.longest_recovery()
    if tokens > SHORT:
        gaps |= {
            f"DeltaNet {method} after {tokens:,} tokens": change(
                e.recovered(method, tokens=tokens), e.recovered("none", tokens=tokens)
            )
            for method in BEST
        }
    return compared("50 % removed, cut - control, nats: ", gaps, "lower")


def order_after(e: Evidence) -> Outcome:
    cases = {
        case: {
            f"{best} - {other}": change(
                e.recovered(best, keep, model), e.recovered(other, keep, model)
            )
            for best in BEST
            for other in OTHERS
        }
        for case, (model, keep) in recovered_cuts(e).items()
    }
    return closest_compared("closest pair, nats: ", cases, "lower")


def recall_after(e: Evidence) -> Outcome:
    gaps = against_control(e, "recall 32")
    return compared("32 pairs, 50 % removed, cut - control: ", gaps, "lower", show=points)


def best_recall(e: Evidence) -> Outcome:
    """Recall of Grad minus that of each other method, after recovery as in the paper."""
    cases = {
        case: {
            f"grad - {other}": change(
                e.recovered("grad", keep, model), e.recovered(other, keep, model), "recall 32"
            )
            for other in METHODS
            if other != "grad"
        }
        for case, (model, keep) in recovered_cuts(e).items()
    }
    return closest_compared("32 pairs, closest pair: ", cases, "higher", show=points)


def recall_returns(e: Evidence) -> Outcome:
    """Whether recovery on text raises recall; the paper has no recall before recovery."""
    gaps = {
        f"{name} {method}": change(
            e.recovered(method, model=model), e.before_recovery(method, 0.5, model), "recall 32"
        )
        for name, model in halves(e).items()
        for method in BEST
    }
    return compared("32 pairs, 50 % removed, after - before: ", gaps, "higher", show=points)


def answers(row: Row) -> list[float]:
    return [right for task in CHANCE for right in row[task]]


def above_chance(row: Row) -> Interval:
    """Accuracy above chance, over all questions of the multiple-choice tasks."""
    over = [x - chance for task, chance in CHANCE.items() if chance for x in row[task]]
    return interval([0.0] * len(over), over)


def zero_shot(e: Evidence) -> Outcome:
    """What the cut loses; no verdict unless the original is above chance."""
    base = e.tasks.select(model=DELTA_NET, stage="cut", method="none")[0]
    edge = above_chance(base)
    lost = {
        f"grad at 50 %, {stage}": interval(
            answers(base), answers(e.tasks.select(model=DELTA_NET, stage=stage, method="grad")[0])
        )
        for stage in ("cut", "recovered")
    }
    text = f"DeltaNet, original {points(edge)} above chance, LAMBADA {_lambada(base)}; "
    shown, outcome = compared(text, lost, "higher", than=-0.02, show=points)
    above = verdict(edge, "higher", than=0.05) == "confirmed here"
    return shown, outcome if above else "needs its scale"


def _lambada(row: Row) -> str:
    return f"{mean([row], 'lambada_openai acc'):.0%} right"


RECOVERY = (
    zero_shot, better_after, below_original, below_control, order_after, recall_after, best_recall,
    recall_returns,
)  # fmt: skip
