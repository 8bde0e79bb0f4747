"""Least squares from moments: the weight W that minimises |W a - y|^2 over calibration tokens.

The moments are sums over tokens: of the input aa' [n, n], of output and input ya' [m, n], and the
square of the output |y|^2 [1].
"""

import torch
from torch import Tensor

from ..errors import StatetrimError


def fit_least_squares(input_moment: Tensor, cross_moment: Tensor, damping: float) -> Tensor:
    """The weight [m, n] of least squared error, float64.

    `damping` is added to the diagonal, relative to its mean. Raises StatetrimError if the entries
    of a are linearly dependent, so that the weight is not unique.
    """
    mean_square, size = float(input_moment.diagonal().mean()), len(input_moment)
    damped = input_moment + damping * mean_square * torch.eye(size, dtype=input_moment.dtype)
    factor, failed = torch.linalg.cholesky_ex(damped)
    rounding = size * torch.finfo(damped.dtype).eps * damped.diagonal().max()
    if int(failed) or bool(factor.diagonal().square().min() <= rounding):
        raise StatetrimError(
            "the read-out's channels depend on one another on this text, so the fit is not unique; "
            "give more tokens or a larger damping, such as 1e-6"
        )
    return torch.cholesky_solve(cross_moment.mT, factor).mT


def relative_residual(
    weight: Tensor, input_moment: Tensor, cross_moment: Tensor, output_square: Tensor
) -> float:
    """The relative residual sum of squares |W a - y|^2 / |y|^2 of a weight [m, n].

    0.0 if y is zero. Rounding may make a residual of zero slightly negative.
    """
    weight, total = weight.double(), output_square.sum()
    quadratic = (weight * (weight @ input_moment)).sum()
    residual = total - 2 * (weight * cross_moment).sum() + quadratic
    return float(residual) / float(total) if total else 0.0  # a layer whose output is zero
