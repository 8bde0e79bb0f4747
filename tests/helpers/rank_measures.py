"""Measures of a state's rank, and of how much it amplifies the noise of a query."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def effective_rank(matrix: Tensor) -> Tensor:
    """`|S|_F^2 / |S|_2^2` of [..., rows, columns], also called stable rank; nan for a zero matrix.

    Between 1 and the rank, and unchanged by transposition, rotation and scale.
    """
    singular: Tensor = torch.linalg.svdvals(matrix.double())
    return (singular / singular[..., :1]).square().sum(-1)


def rank_utilization(matrix: Tensor) -> Tensor:
    """Effective rank of [..., rows, columns] as a fraction of the most it could be."""
    return effective_rank(matrix) / min(matrix.shape[-2:])


@dataclass(frozen=True)
class RetrievalError:
    """How much a state amplifies query noise, and what bounds that.

    `ratio` is the relative output error over the relative query error. `lower <= ratio <= upper`
    always; the paper's bounds are these, loosened by the square root of the effective rank.
    """

    ratio: float
    noise_alignment: float  # |cosine| of the noise with the top right singular vector (delta)
    query_alignment: float  # |cosine| of the query with it (gamma)
    effective_rank: float

    @property
    def lower(self) -> float:
        return self.noise_alignment

    @property
    def upper(self) -> float:
        return 1 / self.query_alignment if self.query_alignment > 0 else math.inf

    @property
    def paper_lower(self) -> float:
        return self.lower / math.sqrt(self.effective_rank)

    @property
    def paper_upper(self) -> float:
        return self.upper * math.sqrt(self.effective_rank)


def retrieval_error_bounds(state: Tensor, query: Tensor, noise: Tensor) -> RetrievalError:
    """Amplification of `noise` [d_k] added to `query` [d_k] when reading `state` [d_v, d_k]."""
    state, query, noise = state.double(), query.double(), noise.double()
    if not noise.any() or not (state @ query).any():
        raise ValueError("the error ratio needs a nonzero noise and a nonzero clean output")
    principal = torch.linalg.svd(state, full_matrices=False).Vh[0]
    noise, query = noise / noise.norm(), query / query.norm()
    return RetrievalError(
        ratio=float((state @ noise).norm() / (state @ query).norm()),
        noise_alignment=float((noise @ principal).abs()),
        query_alignment=float((query @ principal).abs()),
        effective_rank=float(effective_rank(state)),
    )
