"""A linear map fitted to sums over data: `weight @ a` as near to `y` as it can be."""

import torch
from torch import Tensor

from ..errors import StatetrimError


def fit_least_squares(gram: Tensor, target: Tensor, damping: float) -> Tensor:
    """The weight [m, n] of least squared error, from aa' [n, n] and ya' [m, n], float64.

    `damping` is relative to the mean square of a's entries.
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
    """What `weight @ a` [m, n] misses of y, in squares, as a part of y's squares [1]."""
    weight, total = weight.double(), float(square.sum())
    residual = square.sum() - 2 * (weight * target).sum() + (weight * (weight @ gram)).sum()
    return float(residual) / total if total else 0.0  # a layer that is silent
