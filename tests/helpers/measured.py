"""Measurements made up by hand: samples and scores of models, measured shapes, agreement of an
engine."""

import random
from collections.abc import Mapping
from math import log1p
from typing import Any

import statetrim as st
from statetrim.artifacts.decision import MeasuredShape
from statetrim.artifacts.scores import Score
from statetrim.artifacts.verification import Agreement
from statetrim.cut.shape import Shape

ROWS = 64
LOADS = (4, 8, 16, 32, 63)
CONTROL = "random "
Samples = dict[tuple[str, str], list[float]]


def answers(share: float, count: int = ROWS, seed: int = 0) -> list[float]:
    """Right and wrong answers (1 and 0), `share` of them right, shuffled by `seed`."""
    right = round(share * count)
    samples = [1.0] * right + [0.0] * (count - right)
    random.Random(seed).shuffle(samples)
    return samples


def rows(share: float, noise: float = 0.02, seed: int = 0) -> list[float]:
    """Shares of right answers, one per sequence."""
    draw = random.Random(seed)
    return [min(1.0, max(0.0, share + draw.uniform(-noise, noise))) for _ in range(ROWS)]


def likelihoods(nats: float, seed: int = 0) -> list[float]:
    """Log-likelihoods of sequences of 100 tokens, about -`nats` per token."""
    draw = random.Random(seed)
    return [-100 * (nats + draw.uniform(-0.2, 0.2)) for _ in range(ROWS)]


def shifted(samples: list[float], by: float, noise: float = 0.0, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [value + by + draw.uniform(-noise, noise) for value in samples]


def model(recall: Mapping[int, float] | float = 0.9, nats: float = 3.0, kl: float = 0.0) -> Samples:
    """Samples of a model on a text and on MQAR; `recall` is the share right, by pairs or of all."""
    by_load = {load: recall for load in LOADS} if isinstance(recall, float) else dict(recall)
    base = likelihoods(3.0)
    samples: Samples = {
        ("text", "perplexity"): shifted(base, -100 * (nats - 3.0), 0.5 if nats != 3.0 else 0.0),
        ("text", "kl"): shifted([kl] * ROWS, 0.0, kl / 10),
    }
    settings = {f"pairs_{load}": rows(share, seed=load) for load, share in by_load.items()}
    means = [sum(row) / len(row) for row in zip(*settings.values(), strict=True)]
    return (
        samples
        | {("mqar", name): value for name, value in settings.items()}
        | {("mqar", "accuracy"): means}
    )


def random_cuts(recall: float = 0.4, nats: float = 3.8, kl: float = 0.9) -> dict[str, Samples]:
    """Five random cuts of about these figures, by the names under which `scores` knows them."""
    cuts = {}
    for seed in range(5):
        spread = 1 + 0.02 * (seed - 2)
        cuts[f"{CONTROL}{seed}"] = model(recall * spread, 3 + (nats - 3) * spread, kl * spread)
    return cuts


def scores(models: Mapping[str, Samples], **lineage: Any) -> st.Scores:
    """Scores of models; those whose names start with `CONTROL` are random cuts."""
    controls: dict[str, Any] = {name: {} for name in models if name.startswith(CONTROL)}
    if controls:
        lineage = {"controls": controls, **lineage}
    all_scores = []
    for name, figures in models.items():
        for (task, metric), samples in figures.items():
            unit = {"perplexity": "perplexity", "kl": "nats"}.get(metric, "share")
            weights = [100.0] * len(samples) if unit == "perplexity" else None
            all_scores.append(Score(name, task, metric, unit, unit == "share", samples, weights))
    return st.Scores([name for name in models if name not in controls], all_scores, dict(lineage))


def point(shape: str) -> MeasuredShape:
    """A shape of a 64x64 state, which is that of the original."""
    keys, values = map(int, shape.split("x"))
    return MeasuredShape(
        Shape(keys, values), "none" if shape == "64x64" else "l1", 4 * keys * values
    )


def shape_scores(recall: float, perplexity: float, margin: float = 1.0) -> st.Scores:
    """Scores of an original and a cut: points of recall lost, and percent of perplexity gained,
    both with about this margin."""
    spread = margin * ROWS**0.5 / 2 / 100  # of the samples, alternating
    signs = [1.0 if row % 2 else -1.0 for row in range(ROWS)]
    nats = log1p(perplexity / 100)
    original: Samples = {
        ("mqar", "accuracy"): [0.9] * ROWS,
        ("text", "perplexity"): [-300.0] * ROWS,
    }
    cut: Samples = {
        ("mqar", "accuracy"): [0.9 - recall / 100 + spread * sign for sign in signs],
        ("text", "perplexity"): [-300.0 - 100 * (nats + spread * sign) for sign in signs],
    }
    return scores({"original": original, "cut": cut})


def agreements(**agreed: int) -> list[Agreement]:
    """Two sequences of 50 tokens for each model, of which so many are those of transformers."""
    return [
        Agreement(name, "texts", [50] * 2, [n] * 2, [n] * 2, [50] * 2, 0.3, None, 40)
        for name, n in agreed.items()
    ]
