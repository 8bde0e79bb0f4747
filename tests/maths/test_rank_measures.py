"""Effective rank, utilization, condition and retrieval error of small matrices."""

import numpy as np
import pytest
import torch

from helpers.matrices import with_spectrum
from helpers.rank_measures import effective_rank, rank_utilization, retrieval_error_bounds
from statetrim.maths.linalg import condition_number


def test_effective_rank_utilization_and_condition_of_a_known_spectrum() -> None:
    singular = np.array([4.0, 2.0, 1.0, 0.0])
    matrix = torch.from_numpy(with_spectrum(np.random.default_rng(13), 7, singular))
    for oriented in (matrix, matrix.T):
        assert effective_rank(oriented).item() == pytest.approx(21 / 16)
        assert rank_utilization(oriented).item() == pytest.approx(21 / 64)
        assert condition_number(oriented).item() == pytest.approx(4.0)


def test_rank_measures_take_batches_and_any_float_type() -> None:
    batch = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    for measure in (effective_rank, rank_utilization, condition_number):
        values = measure(batch)
        assert (values.shape, values.dtype) == ((2, 3), torch.float64)
        torch.testing.assert_close(values[1, 2], measure(batch[1, 2].double()))


def test_rank_measures_are_undefined_for_a_zero_matrix_and_only_there() -> None:
    batch = torch.stack([torch.zeros(3, 3), torch.eye(3)])
    for measure, expected in ((effective_rank, 3), (rank_utilization, 1), (condition_number, 1)):
        values = measure(batch)
        assert values[0].isnan() and values[1].item() == pytest.approx(expected)


def test_rank_measures_survive_extreme_scales() -> None:
    matrix = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    for scale in (1e-300, 1e300):
        assert effective_rank(matrix * scale).item() == pytest.approx(10 / 9)
        assert condition_number(matrix * scale).item() == pytest.approx(3.0)


def test_retrieval_error_of_a_diagonal_state() -> None:
    state = torch.diag(torch.tensor([2.0, 1.0]))
    error = retrieval_error_bounds(state, torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0]))
    assert error.ratio == pytest.approx(1 / np.sqrt(1.2**2 + 0.8**2))
    assert (error.lower, error.upper) == (0.0, pytest.approx(5 / 3))
    assert error.paper_upper == pytest.approx(5 / 3 * np.sqrt(1.25))
    aligned = retrieval_error_bounds(state, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert (aligned.ratio, aligned.lower, aligned.upper) == (2.0, 1.0, float("inf"))
    assert aligned.paper_lower == pytest.approx(1 / np.sqrt(1.25))


def test_retrieval_error_needs_noise_and_a_clean_output() -> None:
    state, query = torch.diag(torch.tensor([1.0, 0.0])), torch.tensor([1.0, 0.0])
    with pytest.raises(ValueError, match="nonzero"):
        retrieval_error_bounds(state, query, torch.zeros(2))
    with pytest.raises(ValueError, match="nonzero"):
        retrieval_error_bounds(state, query.flip(0), query)
