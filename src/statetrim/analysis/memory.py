"""Checkpoint + text -> Memory: the loss when layers forget what they read.

The model runs as it is, then once for each layer without its state or KV cache, without all of
them, and with all states emptied at regular intervals.
"""

from collections.abc import Iterator
from pathlib import Path

from ..artifacts.memory import Forgetting, Memory, MemoryKind
from ..errors import StatetrimError
from ..options import takes_options
from ..progress import progress_reporter
from ..runtime.corpus import Corpus
from ..runtime.forgetting import attention_calls, emptied_states
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import run_and_save
from ..version import __version__
from .experiment import SO_FAR, Experiment, range_ends
from .options import MemoryOptions

HORIZONS = (16, 64, 256, 1024)  # tokens after which all states are emptied


@takes_options(MemoryOptions)
def analyze_memory(model: ModelLike, options: MemoryOptions) -> Memory:
    """Measure what text and recall lose when each layer alone, and all, find nothing of earlier
    tokens in their state or KV cache; and when all states are emptied every 16 to 1024 tokens.

    Each measurement reads `tokens` of `text` after `skip`, and `rows` recall sequences of each
    load. With weights on disk (`layerwise`) it reads them once. With `out` the result is written
    there, and the same call resumes after an interruption.
    """
    checkpoint, length = as_checkpoint(model), options.length
    corpus = Corpus(options.text, checkpoint)
    data = corpus.read(tokens=options.tokens, length=length, skip=options.skip)
    if len(data.ids) < 2:
        raise StatetrimError(
            f"one window of {length} tokens gives no interval; read more tokens, or shorter windows"
        )
    lineage = {
        "statetrim": __version__,
        "source": checkpoint.digest,
        "dtype": options.dtype_text,
        "data": data.lineage,
        "rows": options.rows,
    }

    def measure(directory: Path | None) -> Memory:
        live, softmax_layers = load_live(checkpoint, options.placement), set[int]()
        with attention_calls(live, on_call=softmax_layers.add):
            experiment = Experiment(live, data, options.rows, options.batch_size)
        settings = list(_settings(live, sorted(softmax_layers), data.ids.shape[1]))
        changes = [
            attention_calls(live, blind=layers)
            if kind == "KV cache"
            else emptied_states(live, layers, every)
            for kind, layers, every in settings
        ]
        with progress_reporter(options.progress, "forgetting") as report:
            samples = experiment.all_samples(changes, directory, report)
        measured = [Forgetting(*x, y) for x, y in zip(settings, samples, strict=True)]
        return Memory(experiment.samples(), measured, range_ends(length - 1), lineage)

    record = {"format": "statetrim memory job", **lineage}
    return run_and_save(options.out, record, measure, Memory.load, temporary_patterns=[SO_FAR])


def _settings(
    live: LiveModel, softmax_layers: list[int], length: int
) -> Iterator[tuple[MemoryKind, list[int], int]]:
    """What forgets, which layers, and after how many tokens."""
    linear_layers = list(live.checkpoint.geometry.layers)
    singles: list[tuple[int, MemoryKind]] = [(layer, "state") for layer in linear_layers]
    singles += [(layer, "KV cache") for layer in softmax_layers]
    for layer, kind in sorted(singles):
        yield kind, [layer], 1
    if len(softmax_layers) > 1:
        yield "KV cache", softmax_layers, 1
    if len(linear_layers) > 1:
        yield "state", linear_layers, 1
    for every in HORIZONS:
        if every < length:
            yield "state", linear_layers, every
