"""Comparing statistics."""

from statetrim.artifacts.statistics import Statistics


def close(first: Statistics, second: Statistics, tolerance: float) -> None:
    assert first.layers.keys() == second.layers.keys() and first.parts == second.parts
    for layer in first.layers:
        assert first.layers[layer].tokens == second.layers[layer].tokens
        for part in first.parts:
            a, b = (getattr(s.layers[layer], part) for s in (first, second))
            assert (a - b).abs().max() <= tolerance * a.abs().max(), (layer, part)
