"""Statistics of what is read from the states, and the fit of the output projection from them."""

import torch
from torch import Tensor

from ..artifacts.statistics import LayerStatistics
from ..errors import StatetrimError
from ..runtime.kernel_hooks import KernelCall, Readout
from ..storage.checkpoint import Checkpoint
from .statistic import Statistic, traces


def _output_square(call: KernelCall, model: Checkpoint) -> Tensor:
    """Mean squares over the channels of the kernel's output."""
    return call.output.flatten(0, -3).double().square().mean(dim=-1).sum(dim=0)


def _tokens(sums: LayerStatistics) -> Tensor:
    return torch.tensor([float(sums.tokens)], dtype=torch.float64)


def _readout_gram(readout: Readout, model: Checkpoint) -> Tensor:
    """Of the output projection's input: the kernel's output after norm and gate."""
    values, grams = _rows(readout.values), []
    for channel_rows in model.channels(readout.layer):
        if channel_rows.role == "o_proj":
            rows = values[:, channel_rows.rows.to(values.device)].transpose(0, 1)
            grams.append(rows.mT @ rows)
    return sum(grams[1:], start=grams[0])


def _readout_moment(readout: Readout, model: Checkpoint) -> Tensor:
    """aa', with a the read-out of the cut (of the original, if only heads are removed)."""
    values = _rows(readout.values)
    return values.mT @ values


def _target_moment(readout: Readout, model: Checkpoint) -> Tensor:
    """ya', with y the output of the original."""
    return _rows(readout.output).mT @ _rows(readout.values)


def _target_square(readout: Readout, model: Checkpoint) -> Tensor:
    return _rows(readout.output).square().sum().reshape(1)


def _output_energy(sums: LayerStatistics) -> Tensor:
    """Errors are relative to the layer's output on their source."""
    return sums.sums.get("target_square", torch.ones(1))


def _rows(activations: Tensor) -> Tensor:
    """[tokens, columns], float64."""
    return activations.flatten(0, -2).double()


READOUT_STATISTICS = (
    Statistic("output_square", "output_heads", KernelCall, _output_square, _tokens),
    Statistic(
        "readout_gram", "value_heads values values", Readout, _readout_gram, traces("readout_gram")
    ),
)
REFIT_STATISTICS = (
    Statistic("readout_moment", "readout readout", Readout, _readout_moment, _output_energy),
    Statistic("target_moment", "hidden readout", Readout, _target_moment, _output_energy),
    Statistic("target_square", "1", Readout, _target_square, _output_energy),
)
"""What a refit needs: sums over the outputs of a cut and its original on the same tokens."""


def fit_projection(sums: LayerStatistics, damping: float) -> Tensor:
    """The projection [hidden, n] with the least squared error over the summed tokens, float64.
    `damping` is added to the moment's diagonal, relative to its mean."""
    moment, size = sums["readout_moment"], len(sums["readout_moment"])
    mean_square = float(moment.diagonal().mean())
    damped = moment + damping * mean_square * torch.eye(size, dtype=moment.dtype)
    factor, failed = torch.linalg.cholesky_ex(damped)
    rounding = size * torch.finfo(damped.dtype).eps * damped.diagonal().max()
    if int(failed) or bool(factor.diagonal().square().min() <= rounding):
        raise StatetrimError(
            "the read-out's channels depend on one another on this text, so the fit is not unique; "
            "give more tokens or a larger damping, such as 1e-6"
        )
    return torch.cholesky_solve(sums["target_moment"].mT, factor).mT


def relative_error(weight: Tensor, sums: LayerStatistics) -> float:
    """Squared error over squared norm of the layer's output, with a projection [hidden, n]; 0.0 for
    an output of zero. Rounding may make an error of zero slightly negative."""
    weight, total = weight.double(), sums["target_square"].sum()
    quadratic = (weight * (weight @ sums["readout_moment"])).sum()
    residual = total - 2 * (weight * sums["target_moment"]).sum() + quadratic
    return float(residual) / float(total) if total else 0.0
