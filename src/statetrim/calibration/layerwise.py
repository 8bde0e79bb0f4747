"""Calibration of models larger than memory: all batches pass one layer, then the next."""

from collections.abc import Mapping, Sequence
from itertools import count

from torch import Tensor

from ..progress import OnProgress, Progress
from ..runtime.live import LiveModel
from ..runtime.sequential import LayerWalk
from ..storage.space import check_space
from .hooks import calibration_hooks
from .saved_sums import SavedSums
from .sums import Sums

_HIDDEN_BYTES = 4  # per channel of a hidden state, at most


def calibrate_layerwise(
    live_models: Sequence[LiveModel],
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, Sequence[Tensor]],
    saved: SavedSums | None,
    progress: OnProgress,
) -> None:
    """Add all batches to the sums, from the layer where an earlier run stopped. The layers of a
    second model, cut from the first, get the same inputs. Without `saved`, hidden states are kept
    in main memory and nothing is resumed."""
    batches: list[Tensor] = []
    total_tokens = 0
    for source, source_batches in batches_by_source.items():
        batches += source_batches
        sums[source].tokens = sum(batch.numel() for batch in source_batches)
        total_tokens += sums[source].tokens
    walk = LayerWalk(live_models[0], batches, saved.layerwise_directory if saved else None)
    layers = live_models[0].checkpoint.geometry.layers
    if saved:
        saved.restore_layers(sums, [layer for layer in layers if layer < walk.layer])
        hidden_size = int(live_models[0].module.get_input_embeddings().weight.shape[1])
        check_space(saved.layerwise_directory, 2 * _HIDDEN_BYTES * total_tokens * hidden_size)
    depth = max(layers) + 1
    for number in walk.layers(depth):
        if number in layers:
            _add_layer(live_models, walk, sums, batches_by_source)
            if saved:
                saved.save_layer(sums, number)
        else:
            for step in range(len(batches)):
                walk.run_batch(step)
        progress(Progress(total_tokens * (number + 1) // depth, total_tokens, "tokens"))


def _add_layer(
    live_models: Sequence[LiveModel],
    walk: LayerWalk,
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, Sequence[Tensor]],
) -> None:
    """Pass all batches through the walk's layer; the cut's mixer is in memory only meanwhile."""
    for cut in live_models[1:]:
        assert cut.weights is not None
        cut.weights.load(cut.mixers[walk.layer])
    steps = count()
    for source, batches in batches_by_source.items():
        with calibration_hooks(live_models, sums[source], [walk.layer]):
            for _ in batches:
                walk.run_batch(next(steps))
        sums[source].to_cpu(walk.layer)
    for cut in live_models[1:]:
        assert cut.weights is not None
        cut.weights.unload(cut.mixers[walk.layer])
