"""Least squares from moments: the weight W that minimises |W a - y|^2 over calibration tokens."""

import torch
from torch import Tensor

from ..errors import StatetrimError


def fit_least_squares(gram: Tensor, target: Tensor, damping: float) -> Tensor:
    """The weight [m, n] of least squared error, from the sums aa' [n, n] and ya' [m, n], float64.

    `damping` is added to the diagonal, relative to its mean. Raises StatetrimError if the entries
    of a are linearly dependent, so that the weight is not unique.
    """
    mean_square = float(gram.diagonal().mean())
    damped = gram + damping * mean_square * torch.eye(len(gram), dtype=gram.dtype)
    factor, failed = torch.linalg.cholesky_ex(damped)
    rounding = len(gram) * torch.finfo(gram.dtype).eps * damped.diagonal().max()
    if int(failed) or bool(factor.diagonal().square().min() <= rounding):
        raise StatetrimError(
            "the read-out's channels depend on one another on this text, so the fit is not unique; "
            "give more tokens or a larger damping, such as 1e-6"
        )
    return torch.cholesky_solve(target.mT, factor).mT


def relative_residual(weight: Tensor, gram: Tensor, target: Tensor, square: Tensor) -> float:
    """The relative residual sum of squares |W a - y|^2 / |y|^2 of a weight [m, n].

    `gram` is aa' [n, n], `target` is ya' [m, n] and `square` is |y|^2 [1], all summed over tokens.
    0.0 if y is zero. Rounding may make a residual of zero slightly negative.
    """
    weight, total = weight.double(), float(square.sum())
    residual = square.sum() - 2 * (weight * target).sum() + (weight * (weight @ gram)).sum()
    return float(residual) / total if total else 0.0  # a layer whose output is zero
