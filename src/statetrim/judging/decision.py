"""The rule that chooses a shape among those that were measured."""

from collections.abc import Mapping, Sequence

from ..artifacts.decision import Decision, MeasuredShape, Prediction

LOSS_TIE_NATS = 1e-3
"""Nats per token; losses that differ by less are a tie, which the larger state wins."""


def decide(
    measured: Sequence[MeasuredShape], prediction: Prediction, refused: Mapping[str, Sequence[str]]
) -> Decision:
    """Choose the lowest loss among the candidates whose recall is no worse than the best.

    Recall is no worse if its interval reaches the best candidate's recall. Of losses within
    LOSS_TIE_NATS the largest state wins.
    """
    best_recall = max((x.recall.estimate for x in measured if x.recall), default=0.0)
    eligible = [x for x in measured if x.recall is None or x.recall.high >= best_recall]
    lowest_loss = min(x.loss.estimate for x in eligible)
    tied = [x for x in eligible if x.loss.estimate < lowest_loss + LOSS_TIE_NATS]
    chosen = max(tied, key=lambda x: (x.share, -x.loss.estimate))
    return Decision(
        chosen.name,
        _decision_text(chosen, measured, eligible, tied),
        {name: prediction.cost(name) for name in prediction.ranked},
        dict(refused),
        list(measured),
    )


def _decision_text(
    chosen: MeasuredShape,
    measured: Sequence[MeasuredShape],
    eligible: Sequence[MeasuredShape],
    tied: Sequence[MeasuredShape],
) -> str:
    recall = ""
    if chosen.recall is not None:
        recall = f" and recall loss {-chosen.recall.estimate:+.1f} points"
    reason = "its loss is the lowest"
    if len(measured) == 1:
        reason = "no other shape fits"
    elif len(eligible) < len(measured):
        worse = [x.name for x in measured if x not in eligible]
        verb = "recall less" if len(worse) > 1 else "recalls less"
        reason += f" of those that recall no worse ({' and '.join(worse)} {verb})"
    if len(tied) > 1:
        reason = f"of {len(tied)} shapes with the same loss it has the largest state"
    return (
        f"{chosen.name} ({chosen.share:.0%} of the state): loss {chosen.loss.estimate:+.4f} nats"
        f"{recall}; {reason}"
    )
