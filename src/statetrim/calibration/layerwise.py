"""The same sums from a walk over the layers, for models larger than memory."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..progress import OnProgress, Progress
from ..runtime.live import LiveModel
from ..runtime.sequential import LayerPass, LayerWalk
from ..storage.space import check_space
from .hooks import calibration_hooks
from .saved_sums import SavedSums
from .sums import Sums

_HIDDEN_BYTES = 4  # of a hidden state's channel, at most


def calibrate_layerwise(
    live_models: Sequence[LiveModel],
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, Sequence[Tensor]],
    saved: SavedSums | None,
    progress: OnProgress,
) -> None:
    """Add all batches of every source to its sums, layer by layer, beginning with the layer that an
    earlier run was in.

    The first of `lives` runs. A second one, cut from it, is shown what its layers see.
    """
    batches = [batch for source in batches_by_source.values() for batch in source]
    walk = LayerWalk(live_models[0], batches, saved.layerwise_directory if saved else None)
    layers = live_models[0].checkpoint.geometry.layers
    total_tokens = sum(batch.numel() for batch in batches)
    if saved:
        saved.restore_layers(sums, [layer for layer in layers if layer < walk.first_layer])
        hidden_size = int(live_models[0].module.get_input_embeddings().weight.shape[1])
        check_space(saved.layerwise_directory, 2 * _HIDDEN_BYTES * total_tokens * hidden_size)
    for source, source_sums in sums.items():
        source_sums.tokens = sum(batch.numel() for batch in batches_by_source[source])
    depth = max(layers) + 1
    for layer_pass in walk.layers(depth):
        if layer_pass.number in layers:
            _add_layer(live_models, layer_pass, sums, batches_by_source, saved)
        else:
            for _ in layer_pass.run():
                pass
        progress(Progress(total_tokens * (layer_pass.number + 1) // depth, total_tokens, "tokens"))


def _add_layer(
    live_models: Sequence[LiveModel],
    layer_pass: LayerPass,
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, Sequence[Tensor]],
    saved: SavedSums | None,
) -> None:
    cut_mixers = [(live.weights, live.mixers[layer_pass.number]) for live in live_models[1:]]
    for weights, mixer in cut_mixers:
        assert weights is not None
        weights.load(mixer)
    first_batch = 0
    for source, batches in batches_by_source.items():
        with calibration_hooks(live_models, sums[source], [layer_pass.number]):
            for _ in layer_pass.run(range(first_batch, first_batch + len(batches))):
                pass
        first_batch += len(batches)
        sums[source].to_cpu(layer_pass.number)
    for weights, mixer in cut_mixers:
        assert weights is not None
        weights.unload(mixer)
    if saved:
        saved.save_layer(sums, layer_pass.number)
