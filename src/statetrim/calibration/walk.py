"""The same sums from a walk over the layers, for models larger than memory."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..progress import OnProgress, Progress
from ..runtime.live import LiveModel
from ..runtime.sequential import LayerWalk, Turn
from ..storage.space import check_space
from .hooks import hooks_for
from .saved_sums import SavedSums
from .sums import Sums

_BYTES = 4  # of a hidden state's channel, at most


def walk_batches(
    lives: Sequence[LiveModel],
    sums: Mapping[str, Sums],
    work: Mapping[str, Sequence[Tensor]],
    saved: SavedSums | None,
    progress: OnProgress,
) -> None:
    """Add all batches of every source to its sums, layer by layer, beginning with the layer that an
    earlier run was in.

    The first of `lives` runs. A second one, cut from it, is shown what its layers see.
    """
    batches = [batch for source in work.values() for batch in source]
    walk = LayerWalk(lives[0], batches, saved.walked if saved else None)
    layers = lives[0].checkpoint.geometry.layers
    total = sum(batch.numel() for batch in batches)
    if saved:
        saved.restore_layers(sums, [layer for layer in layers if layer < walk.first])
        width = int(lives[0].module.get_input_embeddings().weight.shape[1])
        check_space(saved.walked, 2 * _BYTES * total * width)
    for source, held in sums.items():
        held.tokens = sum(batch.numel() for batch in work[source])
    depth = max(layers) + 1
    for turn in walk.turns(depth):
        if turn.number in layers:
            _add_layer(lives, turn, sums, work, saved)
        else:
            for _ in turn.run():
                pass
        progress(Progress(total * (turn.number + 1) // depth, total, "tokens"))


def _add_layer(
    lives: Sequence[LiveModel],
    turn: Turn,
    sums: Mapping[str, Sums],
    work: Mapping[str, Sequence[Tensor]],
    saved: SavedSums | None,
) -> None:
    others = [(live.weights, live.mixers[turn.number]) for live in lives[1:]]
    for weights, mixer in others:
        assert weights is not None
        weights.bring(mixer)
    first = 0
    for source, batches in work.items():
        with hooks_for(lives, sums[source], [turn.number]):
            for _ in turn.run(range(first, first + len(batches))):
                pass
        first += len(batches)
        sums[source].settle(turn.number)
    for weights, mixer in others:
        assert weights is not None
        weights.let_go(mixer)
    if saved:
        saved.save_layer(sums, turn.number)
