"""Cut + Statistics -> the cut with refitted output projections.

A layer of the original computes y = W a. In the cut its output projection gets a', which has fewer
channels and another scale, because the norm averages over fewer. The W' with the least squared
error over the calibration text has a closed form:

    W' = C_ya' (C_a'a' + damping I)^-1,    C_ya' = W C_aa'

Every other tensor is copied byte for byte.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from functools import partial as bind
from pathlib import Path

import torch
from torch import Tensor

from ..artifacts.card.model_card import refitted_card
from ..artifacts.plan import load_carried_plan
from ..artifacts.record import header
from ..artifacts.statistics import LayerStatistics, Statistics
from ..artifacts.steps import write_all_but_weights
from ..errors import StatetrimError
from ..options import takes_options
from ..progress import Advance, counter, progress_reporter
from ..statistics.mixture import mix_statistics
from ..statistics.readouts import REFIT_STATISTICS, fit_projection, relative_error
from ..statistics.statistic import check_sums, unusable
from ..storage.atomic import atomic_write
from ..storage.channel_rows import names_by_layer
from ..storage.checkpoint import Checkpoint, open_checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from ..storage.output import ARTIFACTS, open_output
from ..storage.quantized.rewrite import quantize_like
from ..storage.safetensors_file import patch_shard
from ..storage.space import check_space
from ..version import __version__
from .options import RefitOptions

RECORD = "refit.json"


@takes_options(RefitOptions)
def refit(small: ModelLike, options: RefitOptions) -> Checkpoint:
    """Write `small` with refitted output projections to `out` and open it.

    `statistics` come from `calibrate(small, text, original=model)`, or from its file; if only heads
    were removed, those used to select the heads are enough. Several sources are weighted by their
    fraction of the tokens. `damping` is relative to the mean square of the
    read-out's channels. The errors of every layer, before and after, are in
    `OUT/statetrim/refit.json`. `progress` counts the bytes written. If `out` is the finished result
    of this job, it is only opened. Raises StatetrimError if the statistics are missing, of another
    model or of too few tokens, or if `out` is anything else.
    """
    small = require_prunable(as_checkpoint(small))
    sums = _load_sums(small, options.statistics)
    record = {
        **header("refit"),
        "statetrim": __version__,
        "source": small.digest,
        "weights": small.digest,
        "damping": options.damping,
        "statistics": dict(sums.lineage),
    }
    total_bytes = sum(shard.path.stat().st_size for shard in small.shards)
    with (
        open_output(options.out, RECORD, record) as work,
        progress_reporter(options.progress, "refitting") as report,
    ):
        if not work.done:
            partial = work.path
            check_space(partial, total_bytes)
            errors = _write_shards(
                small, sums, options.damping, partial, counter(report, total_bytes, "bytes")
            )
            layers = {str(layer): error for layer, error in sorted(errors.items())}
            write_all_but_weights(
                small, partial, RECORD, record | {"layers": layers}, refitted_card
            )
            work.publish()
    return open_checkpoint(options.out, small.family)


def _write_shards(
    small: Checkpoint, statistics: Statistics, damping: float, partial: Path, advance: Advance
) -> dict[int, dict[str, float]]:
    """Write all shards with refitted output projections; return the errors "before" and "after" by
    layer. A projection stays as it is if the fit has no smaller error in the stored dtype."""
    errors: dict[int, dict[str, float]] = {}

    def refitted(layer: int, name: str) -> dict[str, Tensor]:
        sums, before = statistics.layers[layer], small.tensor(name)
        fitted = fit_projection(sums, damping)
        if name in small.quantized:
            rounded, stored = quantize_like(small.quantized[name], fitted, small)
        else:
            rounded = fitted.to(before.dtype)
            stored = {name: rounded}
        error_before, error_after = relative_error(before, sums), relative_error(rounded, sums)
        if not error_after < error_before:  # rounding to the stored dtype undid a tiny gain
            stored, error_after = {}, error_before
        errors[layer] = {"before": error_before, "after": error_after}
        return stored

    replacements: dict[str, Callable[[Tensor], Tensor]] = {}
    for layer, name in names_by_layer(small.channel_rows, "o_proj").items():
        fit = cache(bind(refitted, layer, name))
        quantized = small.quantized.get(name)
        for stored_name in quantized.stored_names if quantized else (name,):
            replacements[stored_name] = bind(_replace, fit, stored_name)
    for shard in small.shards:
        target = partial / shard.path.name
        with atomic_write(target) as scratch, scratch.open("xb") as file:
            patch_shard(shard, file, replacements, advance)
    return errors


def _replace(fit: Callable[[], dict[str, Tensor]], name: str, before: Tensor) -> Tensor:
    return fit().get(name, before)


def _load_sums(small: Checkpoint, statistics: Statistics | str | Path | None) -> Statistics:
    """The statistics of `small` over all sources, weighted, and fit for a refit."""
    sums = None
    if statistics is not None:
        stored = load_if_path(Statistics.load, statistics)
        sums = restrict_to_heads(small, mix_statistics(stored, REFIT_STATISTICS))
    if sums is None or not {each.name for each in REFIT_STATISTICS} <= sums.sum_names:
        raise StatetrimError(
            "a refit needs statistics of the original's outputs and this model's read-outs; "
            "run: statetrim calibrate SMALL --original MODEL --text SOURCE -o FILE"
        )
    _check_statistics(small, sums)
    return sums


def _check_statistics(small: Checkpoint, statistics: Statistics) -> None:
    """Refuse sums of another model, not finite, or of fewer tokens than columns to fit."""
    if not small.has_digest(statistics.lineage.get("source")):
        raise StatetrimError("the statistics were made with another model; calibrate this one")
    for layer, name in names_by_layer(small.channel_rows, "o_proj").items():
        columns = small.logical_tensors[name].shape[1]
        sums = statistics.layers.get(layer, LayerStatistics(0))
        check_sums(REFIT_STATISTICS, sums, small, layer)
        if float(sums["target_square"]) < 0:
            raise unusable("target_square", layer)
        if sums.tokens < columns:
            raise StatetrimError(
                f"{sums.tokens} tokens do not determine the {columns} columns of a layer's output "
                f"projection; calibrate with several times as many"
            )


def restrict_to_heads(small: Checkpoint, statistics: Statistics) -> Statistics:
    """The sums that a refit of `small` needs, from `statistics` of its original if `small` only
    lost heads: kept heads have the same read-out, so these are rows and columns of the original's
    sums. Other `statistics` are returned unchanged."""
    plan = load_carried_plan(small)
    if plan is None or set(plan.axes) != {"head"} or small.family.norm_over_heads:
        return statistics
    if plan.lineage.get("source") != statistics.lineage.get("source"):
        return statistics
    if (small.path / ARTIFACTS / "recover.json").exists():
        raise StatetrimError(
            f"{small.path} was trained after its heads went, so the original's statistics say "
            f"nothing of it; calibrate it with --original"
        )
    channels, kept = torch.arange(small.geometry.head_v_dim), plan.axes["head"].kept
    layers: dict[int, LayerStatistics] = {}
    for layer, sums in statistics.layers.items():
        if layer in kept:
            columns = (kept[layer].view(-1, 1) * len(channels) + channels).flatten()
            layers[layer] = _select_columns(sums, columns, layer)
    lineage = {**statistics.lineage, "source": small.digest}
    return replace(statistics, layers=layers, lineage=lineage)


def _select_columns(sums: LayerStatistics, columns: Tensor, layer: int) -> LayerStatistics:
    """The sums that a refit needs, restricted to `columns` of the read-out."""
    moment, target = sums.sums.get("readout_moment"), sums.sums.get("target_moment")
    if (
        moment is None
        or target is None
        or moment.dim() != 2
        or target.dim() != 2
        or len(moment) != moment.shape[1]
        or int(columns.max()) >= min(len(moment), target.shape[1])
    ):
        raise unusable("readout_moment", layer)
    restricted = {
        "readout_moment": moment[columns][:, columns],
        "target_moment": target[:, columns],
    }
    return replace(sums, sums={**sums.sums, **restricted})
