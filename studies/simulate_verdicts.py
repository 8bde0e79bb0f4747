"""How often the verdict errs: simulated experiments on cuts whose true loss is known.

An experiment draws samples of text and recall of the original, a cut and random cuts, and takes
them as `evaluate` does: 32 of each, then twice as many until the verdict is decided or all are
taken. Figures are like those measured on the reference models. Nothing but `judge_cut` is shared
with the package; the rule before it, which decided from estimates and one look, is written out
here.

    python studies/simulate_verdicts.py --experiments 2000
"""

import argparse
from collections import Counter
from dataclasses import dataclass
from math import exp, log

import torch
from torch import Tensor

from statetrim.artifacts.scores import Score, Scores
from statetrim.judging.limits import LIMITS, ship_limit
from statetrim.judging.losses import task_losses
from statetrim.judging.verdict import judge_cut, needs_samples

TOKENS = 511.0  # predicted per sample of text
MOST, FIRST, CONTROLS, CONTROL_SAMPLES = 128, 32, 8, 16
NATS_NOISE, RECALL_NOISE = 0.03, 0.02  # standard deviation of a sample's change


@dataclass(frozen=True)
class Truth:
    """What a cut loses in truth, as parts of the limits, and what random cuts lose."""

    perplexity: float
    recall: float
    random: str = "alike"


@dataclass(frozen=True)
class RandomLosses:
    """The losses of a random cut: nats, of which the logarithm is normal, and a share of recall,
    normal but not below zero."""

    nats: float
    nats_spread: float  # of the logarithm
    share: float
    share_spread: float


RANDOM_LOSSES = {
    "alike": RandomLosses(0.5, 0.2, 0.3, 0.02),
    # As measured on a hybrid whose softmax layer recalls: 0.15 to 0.49 nats, 0 to 26 points.
    "uneven": RandomLosses(0.35, 0.4, 0.11, 0.08),
    # About the limits, so that some keep them; the cut is one more of them.
    "chosen at random": RandomLosses(0.03, 0.5, 0.03, 0.04),
}


def draw_samples(truth: Truth, generator: torch.Generator) -> dict[str, dict[str, Tensor]]:
    """Model -> metric -> samples [MOST] of all that an experiment might take."""

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(MOST, generator=generator, dtype=torch.float64)

    nats, share = 5.8 + noise(0.5), 0.8 + noise(0.03)
    losses = RANDOM_LOSSES[truth.random]

    def random_cut() -> dict[str, Tensor]:
        first, second = torch.randn(2, generator=generator, dtype=torch.float64).tolist()
        lost = losses.nats * exp(losses.nats_spread * first)
        share_lost = max(0.0, losses.share + losses.share_spread * second)
        return {
            "nats": nats + lost + noise(min(0.1, lost)),
            "share": share - share_lost + noise(min(0.1, share_lost)),
            "kl": (log(lost) + noise(0.3)).exp(),
        }

    models = {"original": {"nats": nats, "share": share, "kl": torch.zeros(MOST)}}
    lost_nats = log(1 + truth.perplexity * LIMITS["perplexity"].ship / 100)
    lost_share = truth.recall * LIMITS["recall"].ship / 100
    models["cut"] = {
        "nats": nats + lost_nats + noise(NATS_NOISE),
        "share": share - lost_share + noise(RECALL_NOISE),
        "kl": 0.03 * noise(0.3).exp(),
    }
    for number in range(CONTROLS):
        models[f"random {number}"] = random_cut()
    if truth.random == "chosen at random":
        models["cut"] = random_cut()
    return models


def scores_of(models: dict[str, dict[str, Tensor]], sizes: list[int]) -> Scores:
    """The scores after looks of these sizes."""
    scores = []
    for name, figures in models.items():
        count = CONTROL_SAMPLES if name.startswith("random") else sizes[-1]
        nats, share, kl = (figures[key][:count] for key in ("nats", "share", "kl"))
        likelihoods, tokens = (-TOKENS * nats).tolist(), [TOKENS] * count
        scores += [
            Score(name, "text", "perplexity", "perplexity", False, likelihoods, tokens),
            Score(name, "text", "kl", "nats", False, kl.tolist()),
            Score(name, "mqar", "accuracy", "share", True, share.tolist()),
        ]
    controls = {name: dict[str, str]() for name in models if name.startswith("random")}
    lineage = {"controls": controls, "looks": {"sizes": sizes, "most": MOST}}
    return Scores(["original", "cut"], scores, lineage)


def run_experiment(truth: Truth, seed: int) -> tuple[str, int, str]:
    """The verdict, the samples that it took, and the verdict of the rule before it."""
    models = draw_samples(truth, torch.Generator().manual_seed(seed))
    two = {name: models[name] for name in ("original", "cut")}
    before, sizes = earlier_rule(scores_of(two, [FIRST])), [FIRST]
    while sizes[-1] < MOST and needs_samples(scores_of(two, sizes)):
        sizes.append(2 * sizes[-1])
    return str(judge_cut(scores_of(models, sizes), "cut").outcome), sizes[-1], before


def earlier_rule(scores: Scores) -> str:
    """Ship if estimate and margin of each loss are at most the limit; random cuts aside."""
    outcomes = set()
    for x in task_losses(scores, "cut"):
        limit = ship_limit(x)
        assert limit is not None
        if x.loss.estimate > limit and x.loss.low > 0:
            outcomes.add("ship after recovery")
        elif x.loss.estimate > limit or x.loss.margin > limit:
            outcomes.add("not enough evidence")
    order = ("ship after recovery", "not enough evidence")
    return next((outcome for outcome in order if outcome in outcomes), "ship")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=2000)
    experiments = parser.parse_args().experiments
    cases = {
        "perplexity at the limit, recall at half of it": Truth(1.0, 0.5),
        "recall at the limit, perplexity at half of it": Truth(0.5, 1.0),
        "both at the limit": Truth(1.0, 1.0),
        "both at half of the limit": Truth(0.5, 0.5),
        "both at twice the limit": Truth(2.0, 2.0),
        "recall at the limit, which some random cuts keep": Truth(0.5, 1.0, "uneven"),
        "both at half of the limit, some random cuts keep recall": Truth(0.5, 0.5, "uneven"),
        "as random cuts, of which some keep both limits": Truth(0.0, 0.0, "chosen at random"),
    }
    columns = ("ship", "ship after recovery", "do not ship", "not enough evidence")
    print(f"| true loss | rule | {' | '.join(columns)} | samples, mean |")
    print("|---|---|" + "---:|" * (len(columns) + 1))
    for name, truth in cases.items():
        runs = [run_experiment(truth, seed) for seed in range(experiments)]
        after, before = Counter(run[0] for run in runs), Counter(run[2] for run in runs)
        mean = sum(run[1] for run in runs) / experiments
        for rule, counts, samples in (("before", before, float(FIRST)), ("now", after, mean)):
            shares = " | ".join(f"{counts[column] / experiments:.1%}" for column in columns)
            print(f"| {name} | {rule} | {shares} | {samples:.0f} |")


if __name__ == "__main__":
    main()
