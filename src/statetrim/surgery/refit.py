"""Cut checkpoint + Statistics -> the same checkpoint with refitted output projections.

A layer gave y = W a; after the cut its output projection is given a', which has fewer channels and,
because the norm's mean is taken over those alone, another scale. The best W' for it, in least
squares over the calibration text, has a closed form:

    W' = C_ya' (C_a'a' + damping I)^-1,    C_ya' = W C_aa'

Every other tensor is copied byte for byte.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial as bound
from pathlib import Path
from typing import Any

from torch import Tensor

from ..artifacts.card.model_card import refitted_card
from ..artifacts.header import header
from ..artifacts.mixture import mix_statistics
from ..artifacts.statistics import REFIT_SUM_NAMES, LayerStatistics, Statistics
from ..errors import StatetrimError
from ..maths.least_squares import fit_least_squares, relative_residual
from ..progress import Advance, ShowProgress, counter, progress_reporter
from ..storage.atomic import atomic_write
from ..storage.auxiliary_files import copy_all_but_weights
from ..storage.checkpoint import Checkpoint, open_checkpoint, require_prunable
from ..storage.json_file import write_json, write_text
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from ..storage.output import ARTIFACTS, CARD, open_output
from ..storage.safetensors_file import patch_shard
from ..storage.space import check_space
from ..version import __version__
from .head_statistics import restrict_to_kept_heads

RECORD = "refit.json"


@dataclass(frozen=True)
class LayerError:
    """The part of a layer's output, in squares, that the cut layer misses: 0 is perfect."""

    before: float
    after: float


def refit(
    small: ModelLike,
    statistics: Statistics | str | Path | None,
    *,
    out: str | Path,
    shares: Mapping[str, float] | None = None,
    damping: float = 1e-8,
    progress: ShowProgress = True,
) -> Checkpoint:
    """Write `small` with refitted output projections to `out` and open it.

    `statistics` come from `calibrate(small, text, original=model)`, or from its file; if only heads
    were removed, those used to select the heads are enough. Several sources are weighted by their
    fraction of the tokens, or by `shares`. `damping` is relative to the mean square of the
    read-out's channels. The errors of every layer, before and after, are in
    `OUT/statetrim/refit.json`. `progress` counts the bytes written.
    """
    small = require_prunable(as_checkpoint(small))
    weighted = (
        None
        if statistics is None
        else mix_statistics(load_if_path(Statistics.load, statistics), shares)
    )
    sums = _check_statistics(
        small, None if weighted is None else restrict_to_kept_heads(small, weighted)
    )
    if not 0 <= damping < 1:
        raise StatetrimError(f"damping must lie between 0 and 1, not {damping}")
    record = {
        **header("refit"),
        "statetrim": __version__,
        "source": small.digest,
        "weights": small.digest,
        "damping": damping,
        "statistics": dict(sums.lineage),
    }
    total_bytes = sum(shard.path.stat().st_size for shard in small.shards)
    with (
        open_output(out, RECORD, record) as work,
        progress_reporter(progress, "refitting") as report,
    ):
        if not work.done:
            partial = work.path
            check_space(partial, total_bytes)
            errors = _write_shards(
                small, sums, damping, partial, counter(report, total_bytes, "bytes")
            )
            layers = {str(layer): vars(error) for layer, error in sorted(errors.items())}
            finished_record = record | {"layers": layers}
            original_card = copy_all_but_weights(small, partial, RECORD)
            write_text(
                partial / CARD,
                refitted_card(original_card, small.path.resolve().name, finished_record),
            )
            write_json(partial / ARTIFACTS / RECORD, finished_record)
            result = require_prunable(open_checkpoint(partial, small.family))
            assert [shard.tensors for shard in result.shards] == [s.tensors for s in small.shards]
            work.publish()
    return open_checkpoint(out, small.family)


def fit_projection(sums: LayerStatistics, damping: float) -> Tensor:
    """The projection [hidden, n] with the least squared error over the summed tokens, float64."""
    assert sums.readout_moment is not None and sums.target_moment is not None
    return fit_least_squares(sums.readout_moment, sums.target_moment, damping)


def relative_error(weight: Tensor, sums: LayerStatistics) -> float:
    """What a projection [hidden, n] misses of the layer's output, in squares, as a part of it."""
    gram, target, square = sums.readout_moment, sums.target_moment, sums.target_square
    assert gram is not None and target is not None and square is not None
    return relative_residual(weight, gram, target, square)


def layer_errors(model: Checkpoint, statistics: Statistics) -> dict[int, float]:
    """`error_of` every layer's stored output projection."""
    return {
        layer: relative_error(model.tensor(name), statistics.layers[layer])
        for name, layer in output_projection_names(model).items()
    }


def output_projection_names(model: Checkpoint) -> dict[str, int]:
    """Tensor name -> layer."""
    return {
        name: layer_rows.layer
        for name, layer_rows in model.channel_rows.items()
        if layer_rows.channel_rows[0].role == "o_proj"
    }


def _write_shards(
    small: Checkpoint, statistics: Statistics, damping: float, partial: Path, advance: Advance
) -> dict[int, LayerError]:
    errors: dict[int, LayerError] = {}

    def replacement(layer: int, before: Tensor) -> Tensor:
        sums = statistics.layers[layer]
        after = fit_projection(sums, damping).to(before.dtype)
        error_before, error_after = relative_error(before, sums), relative_error(after, sums)
        if (
            not error_after < error_before
        ):  # rounding to the stored dtype may undo a gain that is next to nothing
            after, error_after = before, error_before
        errors[layer] = LayerError(error_before, error_after)
        return after

    replacements: Mapping[str, Callable[[Tensor], Tensor]] = {
        name: bound(replacement, layer) for name, layer in output_projection_names(small).items()
    }
    for shard in small.shards:
        target = partial / shard.path.name
        with atomic_write(target) as scratch, scratch.open("xb") as file:
            patch_shard(shard, file, replacements, advance)
    return errors


def _check_statistics(small: Checkpoint, statistics: Statistics | None) -> Statistics:
    """Statistics are not to be trusted: of this very model, whole, finite, and of enough tokens."""
    if statistics is None or not set(REFIT_SUM_NAMES) <= statistics.sum_names:
        raise StatetrimError(
            "a refit needs what the original's layers put out and this model's read out, on text; "
            "run: statetrim calibrate SMALL --original MODEL --text SOURCE -o FILE"
        )
    if not small.has_digest(statistics.lineage.get("source")):
        raise StatetrimError("the statistics were made with another model; calibrate this one")
    for name, layer in output_projection_names(small).items():
        hidden, columns = small.tensors[name][1].shape
        shapes = {
            "readout_moment": (columns, columns),
            "target_moment": (hidden, columns),
            "target_square": (1,),
        }
        sums = statistics.layers.get(layer)
        for name_of_sum, shape in shapes.items():
            value: Any = getattr(sums, name_of_sum, None)
            usable = value is not None and tuple(value.shape) == shape
            usable = usable and bool(value.isfinite().all())
            if not usable or (name_of_sum == "target_square" and float(value) < 0):
                raise StatetrimError(
                    f"the statistics of layer {layer} have no usable {name_of_sum!r}; calibrate again"
                )
        if sums is not None and sums.tokens < columns:
            raise StatetrimError(
                f"{sums.tokens} tokens do not determine the {columns} columns of a layer's output "
                f"projection; calibrate with several times as many"
            )
    return statistics
