"""Comparison of calibration statistics."""

from statetrim.artifacts.statistics import Statistics
from statetrim.statistics.readouts import relative_error
from statetrim.storage.channel_rows import names_by_layer
from statetrim.storage.checkpoint import Checkpoint


def assert_statistics_close(first: Statistics, second: Statistics, tolerance: float) -> None:
    assert first.sources.keys() == second.sources.keys() and first.sum_names == second.sum_names
    for source in first.sources:
        assert first.sources[source].keys() == second.sources[source].keys()
        for layer in first.layers:
            first_sums, second_sums = (s.sources[source][layer] for s in (first, second))
            assert first_sums.tokens == second_sums.tokens
            for name in first.sum_names:
                a, b = first_sums[name], second_sums[name]
                assert (a - b).abs().max() <= tolerance * a.abs().max(), (source, layer, name)


def layer_errors(model: Checkpoint, statistics: Statistics) -> dict[int, float]:
    """Layer -> squared error over squared norm of its output, with the projection as stored."""
    projections = names_by_layer(model.channel_rows, "o_proj").items()
    return {i: relative_error(model.tensor(name), statistics.layers[i]) for i, name in projections}
