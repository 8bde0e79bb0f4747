"""Comparing statistics."""

from statetrim.artifacts.statistics import Statistics


def close(first: Statistics, second: Statistics, tolerance: float) -> None:
    assert first.sources.keys() == second.sources.keys() and first.sum_names == second.sum_names
    for source in first.sources:
        assert first.sources[source].keys() == second.sources[source].keys()
        for layer in first.layers:
            one, other = (s.sources[source][layer] for s in (first, second))
            assert one.tokens == other.tokens
            for part in first.sum_names:
                a, b = getattr(one, part), getattr(other, part)
                assert (a - b).abs().max() <= tolerance * a.abs().max(), (source, layer, part)
