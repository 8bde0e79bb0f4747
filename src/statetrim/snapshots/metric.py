"""Statistics -> the metric in which the error of a stored state is measured.

A state is read by queries and, with a delta rule, overwritten along keys. Neither lie where its
energy is. So an error counts by half through the Gram matrix of the queries and by half through
that of the keys; without a delta rule through that of the queries alone (results/snapshots.md).
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..artifacts.statistics import Statistics
from ..errors import StatetrimError
from ..statistics import STATISTICS
from ..statistics.statistic import check_sums
from ..storage.checkpoint import Checkpoint
from ..storage.models import load_if_path

Metrics = Mapping[int, Tensor]
"""Layer -> W [value heads, keys, keys], float32: an error E counts as |W E|."""

_RIDGE = 0.01  # of the mean of the diagonal


def state_metrics(statistics: Statistics | str | Path | None, model: Checkpoint) -> Metrics | None:
    """The metrics of every linear layer, None without statistics; refuses unfit ones."""
    if statistics is None:
        return None
    statistics = load_if_path(Statistics.load, statistics)
    if not model.has_digest(statistics.lineage.get("source")):
        raise StatetrimError(f"the statistics are of another model than {model.path}")
    # The families with a delta rule are those that normalise keys.
    names = ["query_unit_gram", *(["key_unit_gram"] if model.family.normalizes_keys else [])]
    if not statistics.sum_names.issuperset(names):
        raise StatetrimError("the statistics hold no metric; run: statetrim calibrate")
    metrics, shares = {}, statistics.shares
    for layer in model.geometry.layers:
        sums = [statistics.sources[name][layer] for name, share in shares.items() if share]
        for each in sums:
            check_sums([STATISTICS[name] for name in names], each, model, layer)
        grams = tuple(torch.stack([each[name] for each in sums]).sum(0) for name in names)
        metrics[layer] = metric_of(grams).repeat_interleave(model.geometry.group, dim=0)
    return metrics


def metric_of(grams: tuple[Tensor, ...]) -> Tensor:
    """W [heads, keys, keys] with W'W = the mean of Gram matrices, each of mean diagonal 1, plus a
    ridge."""
    total = torch.zeros_like(grams[0])
    for gram in grams:
        size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
        total = total + gram / size.clamp_min(1e-300).reshape(-1, 1, 1) / len(grams)
    ridge = _RIDGE * torch.eye(total.shape[-1], dtype=total.dtype)
    factor, failed = torch.linalg.cholesky_ex(total + ridge, upper=True)
    if bool(failed.any()) or not bool(torch.isfinite(factor).all()):
        raise StatetrimError("the statistics hold Gram matrices that are not valid")
    metric: Tensor = factor.float()
    return metric


def metric_digest(metrics: Metrics | None) -> str | None:
    """A fingerprint of the metrics; None without any."""
    if metrics is None:
        return None
    digest = hashlib.sha256()
    for layer in sorted(metrics):
        digest.update(metrics[layer].numpy().tobytes())
    return digest.hexdigest()
