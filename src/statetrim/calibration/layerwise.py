"""Calibration of models larger than memory: all batches pass one layer, then the next."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..progress import OnProgress, Progress
from ..runtime.live import LiveModel
from ..runtime.sequential import LayerPass, LayerWalk
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
    """Add all batches of every source to its sums, starting at the layer where an earlier run
    stopped.

    The first of `live_models` runs. The layers of a second one, cut from it, get the same inputs.
    Without `saved`, hidden states are kept in main memory and nothing is resumed; with it, raises
    OSError if the disk lacks space for them.
    """
    batches: list[Tensor] = []
    total_tokens = 0
    for source, source_batches in batches_by_source.items():
        batches += source_batches
        sums[source].tokens = sum(batch.numel() for batch in source_batches)
        total_tokens += sums[source].tokens
    walk = LayerWalk(live_models[0], batches, saved.layerwise_directory if saved else None)
    layers = live_models[0].checkpoint.geometry.layers
    if saved:
        saved.restore_layers(sums, [layer for layer in layers if layer < walk.first_layer])
        hidden_size = int(live_models[0].module.get_input_embeddings().weight.shape[1])
        check_space(saved.layerwise_directory, 2 * _HIDDEN_BYTES * total_tokens * hidden_size)
    depth = max(layers) + 1
    for layer_pass in walk.layers(depth):
        if layer_pass.number in layers:
            _add_layer(live_models, layer_pass, sums, batches_by_source)
            if saved:
                saved.save_layer(sums, layer_pass.number)
        else:
            for _ in layer_pass.run():
                pass
        progress(Progress(total_tokens * (layer_pass.number + 1) // depth, total_tokens, "tokens"))


def _add_layer(
    live_models: Sequence[LiveModel],
    layer_pass: LayerPass,
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, Sequence[Tensor]],
) -> None:
    """Pass all batches through one layer, add to its sums, and move them to the CPU; the cut's
    mixer is in memory only meanwhile."""
    for cut in live_models[1:]:
        assert cut.weights is not None
        cut.weights.load(cut.mixers[layer_pass.number])
    first_batch = 0
    for source, batches in batches_by_source.items():
        with calibration_hooks(live_models, sums[source], [layer_pass.number]):
            for _ in layer_pass.run(range(first_batch, first_batch + len(batches))):
                pass
        first_batch += len(batches)
        sums[source].to_cpu(layer_pass.number)
    for cut in live_models[1:]:
        assert cut.weights is not None
        cut.weights.unload(cut.mixers[layer_pass.number])
