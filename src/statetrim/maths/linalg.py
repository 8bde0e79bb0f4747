"""Linear algebra on one head: strong rank-revealing QR of a Gram matrix, and condition numbers.

Everything is computed in float64. `docs/the-maths.md` explains each quantity and why it holds.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Values this close (relative) count as tied, and ties go to the lowest index: dead and duplicated
# channels tie exactly, and rounding must not decide between them.
_TIE_TOLERANCE = 1e-12
# Each swap adds rounding errors to the swept table, so it is recomputed from the Gram this often.
_REFRESH_EVERY = 50


@dataclass(frozen=True, eq=False)
class RRQR:
    """Channels chosen by `strong_rrqr`, and how the search ended.

    A gain is the factor by which the best single swap would multiply the volume (`|det A|`) of
    the kept columns; it is 0.0 where no swap exists (all kept, or `rank` below the kept count).
    """

    kept: Tensor  # int64 [keep], ascending
    rank: int  # numerical rank of the kept columns, as far as a float64 Gram resolves it
    swaps: int
    converged: bool  # False: rounding stopped the search; `last_gain` may exceed the tolerance
    last_gain: float


def strong_rrqr(gram: Tensor, keep: int, tolerance: float = 1.5) -> RRQR:
    """Choose `keep` well-conditioned columns of M, given only `gram` = M'M, float64 [n, n].

    Starts from the pivoted Cholesky choice (that of QR with column pivoting on M) and swaps a kept
    column for a removed one while that multiplies the volume by more than `tolerance`. If M has
    fewer than `keep` independent columns, the columns of largest norm fill up; see `rank`. Raises
    ValueError for other arguments.
    """
    _check_gram(gram, keep)
    if not tolerance > 1:
        raise ValueError(f"tolerance must be above 1 (got {tolerance}): 1 leaves swaps unbounded")
    channels = gram.shape[0]
    table, kept = _pivoted_sweep(gram, torch.ones(channels, dtype=torch.bool), keep)
    rank = int(kept.sum())
    if rank == keep < channels:
        return _swap_until_strong(gram, table, kept, tolerance)
    kept[_longest_columns(gram, ~kept, keep - rank)] = True
    return RRQR(_indices(kept), rank, 0, True, 0.0)


def condition_number(matrix: Tensor) -> Tensor:
    """Largest over smallest nonzero singular value of [..., rows, columns]; nan for a zero matrix.

    Zero means below `max(rows, columns) * eps` of the largest, as in `torch.linalg.matrix_rank`.
    """
    size = matrix.double().abs().amax((-2, -1), keepdim=True)  # scaled by it, squares stay in range
    singular = torch.linalg.svdvals(matrix.double() / torch.where(size > 0, size, 1.0))
    largest = singular[..., :1]
    negligible = singular <= max(matrix.shape[-2:]) * torch.finfo(torch.float64).eps * largest
    smallest = singular.masked_fill(negligible, math.inf).amin(-1)
    return torch.where(largest[..., 0] > 0, largest[..., 0] / smallest, math.nan)


def _check_gram(gram: Tensor, keep: int) -> None:
    if gram.dtype != torch.float64:
        raise ValueError(f"the Gram must be float64, since it squares the condition: {gram.dtype}")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"the Gram of one head is a square matrix, not {list(gram.shape)}")
    if not 1 <= keep <= gram.shape[0]:
        raise ValueError(f"keep must be from 1 to {gram.shape[0]} channels (got {keep})")
    size = gram.abs().max()
    if (
        not size.isfinite()
        or (gram - gram.T).abs().max() > 1e-8 * size
        or gram.diagonal().min() < 0
    ):
        raise ValueError("not a Gram matrix: it must be finite, symmetric, with diagonal >= 0")


def _pivoted_sweep(gram: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sweep up to `count` allowed columns of `gram` [n, n], largest residual first.

    Returns the swept table [n, n] and the mask [n] of swept columns, fewer than `count` if the
    next residual is within rounding of zero. With I swept and J not, the table holds
    `-inverse(G_II)`, `U = inverse(G_II) G_IJ` (and its transpose), and the Schur complement.
    """
    table, closed = gram.clone(), ~allowed
    diagonal, floor = table.diagonal(), _rounding_floor(gram)
    for _ in range(count):
        pivot, largest = _first_maximum(diagonal.masked_fill(closed, -1.0))
        if largest <= floor:
            break
        _sweep(table, pivot)
        closed[pivot] = True
    return table, closed & allowed


def _sweep(table: Tensor, pivot: int, *, inverse: bool = False) -> None:
    """Move one column of a symmetric `table` [n, n] into the swept set, or out of it, in place."""
    column, diagonal = table[pivot].clone(), float(table[pivot, pivot])
    table.addr_(column, column, alpha=-1.0 / diagonal)
    column *= (-1.0 if inverse else 1.0) / diagonal
    table[pivot] = column
    table[:, pivot] = column
    table[pivot, pivot] = -1.0 / diagonal


def _gains(table: Tensor, kept: Tensor, removed: Tensor, floor: float) -> Tensor:
    """Squared volume gain of every swap, [keep, n - keep]; exact, see the maths page.

    A residual below `floor` is rounding: that column depends on the kept ones.
    """
    diagonal = table.diagonal()
    residual = diagonal[removed]
    residual = torch.where(residual > floor, residual, 0.0)
    coefficients = table.index_select(0, kept).index_select(1, removed)
    return coefficients.square_().addr_(diagonal[kept], residual, alpha=-1.0)


def _best_swap(table: Tensor, mask: Tensor, floor: float) -> tuple[float, int, int]:
    """The largest volume gain, and the (leaving, entering) columns that give it."""
    kept, removed = _indices(mask), _indices(~mask)
    flat, largest = _first_maximum(_gains(table, kept, removed, floor).flatten())
    row, column = divmod(flat, len(removed))
    return math.sqrt(largest), int(kept[row]), int(removed[column])


def _swap_until_strong(gram: Tensor, table: Tensor, mask: Tensor, tolerance: float) -> RRQR:
    """Swap the best pair until none gains more than `tolerance`; return the result.

    Changes `table` and `mask` in place. Stops early, not converged, where only rounding gains.
    """
    keep, floor = int(mask.sum()), _rounding_floor(gram)
    limit, visited = _swap_limit(keep, tolerance), set[bytes]()
    swaps = swaps_since_refresh = 0
    while True:
        gain, leaving, entering = _best_swap(table, mask, floor)
        strong = gain <= tolerance * (1 + _TIE_TOLERANCE)
        if strong and not swaps_since_refresh:
            break
        if strong or swaps_since_refresh == _REFRESH_EVERY:  # the last check needs a fresh table
            table, swept = _pivoted_sweep(gram, mask, keep)
            swaps_since_refresh = 0
            if not torch.equal(swept, mask):
                strong = False
                break
            continue
        # Every swap increases the volume, so a set that repeats shows that only rounding gains.
        if bytes(mask.tolist()) in visited or swaps >= limit:
            break
        visited.add(bytes(mask.tolist()))
        _sweep(table, leaving, inverse=True)
        _sweep(table, entering)
        mask[leaving], mask[entering] = False, True
        swaps, swaps_since_refresh = swaps + 1, swaps_since_refresh + 1
    return RRQR(_indices(mask), keep, swaps, strong, gain)


def _swap_limit(keep: int, tolerance: float) -> int:
    """Twice the most swaps exact arithmetic allows.

    The pivoted start has at least 1/keep! of the largest volume (Civril and Magdon-Ismail, 2009)
    and every swap multiplies it by more than `tolerance`.
    """
    return 2 * math.ceil(math.lgamma(keep + 1) / math.log(tolerance)) + 2


def _longest_columns(gram: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Indices [count] of the allowed columns of largest norm, ties to the lowest index."""
    squares = gram.diagonal().masked_fill(~allowed, -1.0)
    chosen = []
    for _ in range(count):
        column, _largest = _first_maximum(squares)
        squares[column] = -1.0
        chosen.append(column)
    return torch.tensor(chosen, dtype=torch.int64)


def _first_maximum(values: Tensor) -> tuple[int, float]:
    """Lowest index of `values` [n] whose value ties with the largest, and the largest."""
    largest = float(values.max())
    tied = values >= largest - _TIE_TOLERANCE * abs(largest)
    return int(tied.nonzero()[0, 0]), largest


def _rounding_floor(gram: Tensor) -> float:
    """Squared residual norms up to this are rounding: n eps of the largest squared column norm."""
    return len(gram) * torch.finfo(torch.float64).eps * float(gram.diagonal().max())


def _indices(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)
