"""Questions that the paper leaves open, answered from the rows of other studies."""

from __future__ import annotations

from claims import Evidence
from figures import RESULTS, Row, Rows, change, nats


def beyond_rows(e: Evidence) -> list[list[str]]:
    """A row per question: question, figures, link to the document."""
    return [_control(e), _axes(), _refit(), _layers(), _precision()]


def _control(e: Evidence) -> list[str]:
    tokens = e.longest_recovery()
    cut, control = (e.recovered(method, tokens=tokens) for method in ("grad", "none"))
    figures = (
        f"half of the keys by grad, {tokens:,} tokens of recovery, nats: against the untouched "
        f"original {nats(change(cut, e.cut('tiny-delta_net', 'none')))}, against the original "
        f"after the same recovery {nats(change(cut, control))}"
    )
    return [
        "Is it recovery or the training text? A dense control",
        figures,
        "[recovery](recovery.md)",
    ]


def _shape(kind: str, step: str, fraction: str = "1/4") -> Row:
    rows = Rows(RESULTS / "two-axes.jsonl")
    return rows.select(model="tiny-delta_net", part=fraction, shape=kind, step=step)[0]


def _cost_text(row: Row, original: Row) -> str:
    nll, low, high = row["nll"]
    rise = nll - original["nll"][0]
    recall, low_recall, high_recall = row["recall 16"]
    half = (high_recall - low_recall) / 2
    return f"{rise:+.3f} ({low:+.3f} to {high:+.3f}) nats, recall {recall:.2f} ± {half:.2f}"


def _dense() -> Row:
    return Rows(RESULTS / "two-axes.jsonl").select(model="tiny-delta_net", shape="original")[0]


def _axes() -> list[str]:
    shapes = {"keys alone": "key", "values alone": "value", "a square": "square"}
    figures = "; ".join(
        f"{name} {_cost_text(_shape(k, 'cut'), _dense())}" for name, k in shapes.items()
    )
    return ["Keys alone, or both axes? A quarter of the bytes", figures, "[two axes](two-axes.md)"]


def _refit() -> list[str]:
    figures = "; ".join(
        f"{kind}: {_cost_text(_shape(kind, 'cut'), _dense())}, refitted "
        f"{_cost_text(_shape(kind, 'refit'), _dense())}"
        for kind in ("square", "value")
    )
    return [
        "A closed-form refit of the output projections",
        figures,
        "[two axes](two-axes.md#refit)",
    ]


def _layers() -> list[str]:
    texts = []
    for model, name in MODELS.items():
        rows = Rows(RESULTS / "recall" / f"layers-{model}.jsonl")
        for kind in ("uniform", "first whole"):
            row = rows.select(kind=kind, part=0.5, axis="keys", refit="text", mix="text")[0]
            value, low, high = row["recall 32"]
            texts.append(f"{name}, {kind}: {value:.2f} ({low:+.2f} to {high:+.2f})")
    figures = "recall at 32 pairs at half of the bytes, change from the original: " + "; ".join(
        texts
    )
    return [
        "Which layers does recall depend on?",
        figures,
        "[recall](recall.md), [uneven layers](uneven.md)",
    ]


MODELS = {"tiny-gated_deltanet6": "Gated DeltaNet", "tiny-qwen3_5_hybrid": "hybrid"}


def _precision() -> list[str]:
    rows, texts = Rows(RESULTS / "precision.jsonl"), []
    for shape, dtype in (("full", "bfloat16"), ("full", "int8"), ("values", "float32")):
        row = _precise(rows, shape, dtype)
        _, change, low, high = row["recall 63"]
        nll = row["nll"][1]
        keys, values = row["shape"]
        texts.append(
            f"{keys} x {values} in {dtype} ({row['bytes']:.0%} of the bytes): {nll:+.3f} nats, "
            f"recall at 63 pairs {change:+.1f} points ({low:+.1f} to {high:+.1f})"
        )
    figures = "; ".join(texts)
    return ["Fewer channels, or fewer bits?", figures, "[precision](precision.md)"]


def _precise(rows: Rows, part: str, dtype: str) -> Row:
    shape = [64, 64] if part == "full" else [64, 32]
    return rows.select(model="tiny-delta_net", dtype=dtype, shape=shape, stochastic=False)[0]
