"""The low-rank code of a state: components of a few bits, as coarse as the bound allows.

A component is a row for the keys and a row for the values, whose product is a matrix of rank one.
Both share a step. They are coded in the state's own channels, so decoding needs no metric; with the
rows in the metric's coordinates the code would be 3 to 10 % smaller and useless without it.

The rows for the values span the right singular vectors of the state, found in a random subspace, or
exactly as fallback. A subspace that misses too much only costs bytes: what is decoded is measured.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

WIDTHS = range(3, 9)  # bits of a component's codes
MAX_RANK = 255
COMPONENT_BITS = 20  # step and width of a component
_STEPS_PER_OCTAVE, _COARSEST, _FINEST = 4, -4, 40  # the grid of thresholds, relative to the bound
_SKETCH_SHARES = (8, 3)  # a subspace has an eighth of the columns, then a third
_MIN_SKETCHED = 96  # rows and columns; of smaller matrices the exact answer costs no more
_MISSED = 0.5  # the error left outside a subspace may be this share of the tolerance


@dataclass(frozen=True, eq=False)
class LowRank:
    """Codes of every head; a component of width 0 is left out, and those come last."""

    widths: Tensor  # uint8 [heads, rank]
    steps: Tensor  # float16 [heads, rank]
    codes: Tensor  # uint8 [heads, rank, keys + values], below 2**width
    bits: Tensor  # float32 [heads], infinite where no threshold meets the bound
    errors: Tensor  # float32 [heads]: relative, of the decoded state


def levels(widths: Tensor) -> Tensor:
    """The largest magnitude of codes of each width, float32; 0 for width 0."""
    return (torch.exp2(widths.float() - 1) - 1).clamp_min(0)


def product(rows: Tensor, keys: int) -> Tensor:
    """States [heads, keys, values] of components [heads, rank, keys + values]."""
    return rows[..., :keys].mT @ rows[..., keys:]


def dequantize(codes: Tensor, widths: Tensor, steps: Tensor) -> Tensor:
    """Components [heads, rank, keys + values], float32."""
    centred = codes.float() - levels(widths).unsqueeze(-1)
    return centred * steps.float().unsqueeze(-1)


class Search:
    """Finds for each head the largest threshold on a grid whose decoded code meets the bound."""

    def __init__(
        self, states: Tensor, weighted: Tensor, metric: Tensor | None, tolerance: float
    ) -> None:
        """States and metric x states [heads, keys, values]."""
        self.weighted, self.metric = weighted, metric
        self.norm = torch.linalg.vector_norm(weighted, dim=(1, 2))
        self.keys, self.values = states.shape[1:]
        vectors, weighted_left = right_vectors(weighted, self.norm, tolerance)
        left = weighted_left if metric is None else vectors @ states.mT
        self.sigma = weighted_left.norm(dim=-1)
        largest_left, largest_right = left.abs().amax(-1), vectors.abs().amax(-1)
        ratio = (largest_right / largest_left.clamp_min(1e-30)).sqrt().unsqueeze(-1)
        right = torch.where(ratio > 0, vectors / ratio, 0.0)
        self.rows = torch.cat([left * ratio, right], -1)
        self.largest = (largest_left * largest_right).sqrt()
        # The error of rounding to a step of `largest`, one level on either side.
        trace = torch.full_like(self.norm, self.keys)
        if metric is not None:
            trace = torch.linalg.vector_norm(metric, dim=(1, 2)).square()
        left_share = trace.unsqueeze(-1) * right.square().sum(-1)
        right_share = self.values * (self.sigma * ratio.squeeze(-1)).square()
        self.noise = self.largest * ((left_share + right_share) / 12).sqrt()

    def run(self, tolerance: float, floor_bits: float) -> LowRank:
        """The coarsest code of each head within `tolerance`, and not below `floor_bits` if it has
        enough components."""
        heads, device = len(self.sigma), self.sigma.device
        steps = torch.arange(_COARSEST, _FINEST + 1, device=device)
        grid = tolerance * 2.0 ** (-steps / _STEPS_PER_OCTAVE)
        widths = _widths(self.sigma, self.noise, grid.reshape(-1, 1, 1) * self.norm.unsqueeze(-1))
        estimates = self._estimate(widths)  # [grid, heads]
        coarsest = _first(self._count_bits(widths) >= floor_bits)
        index = _first(estimates <= tolerance).maximum(coarsest)
        best, active = None, torch.arange(heads, device=device)
        while best is None or len(active):
            at = index[active]
            tried = self._quantize(active, widths[at, active])
            met = tried.errors <= tolerance
            best = self._keep(best, active, tried, met)
            # After a success, coarser if the estimate promises another; after a failure, finer.
            promised = estimates[(at - 1).clamp_min(0), active] * tried.errors
            better = promised <= tolerance * estimates[at, active]
            coarser = met & better & (at > coarsest[active])
            finer = ~met & best.bits[active].isinf() & (at < len(grid) - 1)
            index[active] += torch.where(met, -1, 1)
            active = active[coarser | finer]
        return best

    def _keep(self, best: LowRank | None, heads: Tensor, tried: LowRank, met: Tensor) -> LowRank:
        """`best` with the codes of `tried`, which are of `heads`, where `met`; the first are of all
        heads."""
        missing = self.sigma.shape[1] - tried.widths.shape[1]
        padded = LowRank(
            pad(tried.widths, (0, missing)),
            pad(tried.steps, (0, missing)),
            pad(tried.codes, (0, 0, 0, missing)),
            torch.where(met, tried.bits, torch.inf),
            tried.errors,
        )
        if best is None:
            return padded
        for name in ("widths", "steps", "codes", "bits", "errors"):
            getattr(best, name).index_copy_(0, heads[met], getattr(padded, name)[met])
        return best

    def _estimate(self, widths: Tensor) -> Tensor:
        """Relative errors [grid, heads], if rounding errors were independent."""
        coded, rounding = widths > 0, self.noise / levels(widths).clamp_min(1)
        squares = (rounding.square() * coded + self.sigma.square() * ~coded).sum(-1)
        outside = (self.norm.square() - self.sigma.square().sum(-1)).clamp_min(0)
        return relative((squares + outside).sqrt(), self.norm)

    def _count_bits(self, widths: Tensor) -> Tensor:
        per_component = widths.float() * (self.keys + self.values) + COMPONENT_BITS * (widths > 0)
        return per_component.sum(-1)

    def _quantize(self, heads: Tensor, widths: Tensor) -> LowRank:
        """Round the components of `heads`, decode them and measure the error."""
        every = len(heads) == len(self.norm)
        rows, weighted = self.rows, self.weighted
        if not every:
            rows, weighted = rows[heads], weighted[heads]
        rank = int((widths > 0).sum(1).max())
        widths = widths[:, :rank]
        limit = levels(widths).unsqueeze(-1)
        steps = (self.largest[heads, :rank] / limit.squeeze(-1).clamp_min(1)).half()
        safe = torch.where(steps > 0, steps, 1).float().unsqueeze(-1)
        rounded = (rows[:, :rank] / safe).round_().clamp_(-limit, limit)
        codes = (rounded + limit).byte()
        decoded = dequantize(codes, widths, steps)
        left = decoded[..., : self.keys]
        if self.metric is not None:
            left = left @ (self.metric if every else self.metric[heads]).mT
        difference = torch.baddbmm(weighted, left.mT, decoded[..., self.keys :], alpha=-1)
        error = torch.linalg.vector_norm(difference, dim=(1, 2))
        return LowRank(
            widths, steps, codes, self._count_bits(widths), relative(error, self.norm[heads])
        )


def _first(holds: Tensor) -> Tensor:
    """The first index along the grid [grid, heads] where it holds; the last one if nowhere."""
    return torch.where(holds.any(0), holds.float().argmax(0), len(holds) - 1)


def _widths(sigma: Tensor, noise: Tensor, threshold: Tensor) -> Tensor:
    bits = (torch.log2(noise / threshold.clamp_min(1e-30) + 1) + WIDTHS.start).floor()
    bits = bits.clamp(max=WIDTHS.stop - 1)
    kept = (sigma > 0.7 * threshold) & (torch.arange(sigma.shape[-1]).to(sigma) < MAX_RANK)
    return (bits * kept).byte()


def relative(error: Tensor, norm: Tensor) -> Tensor:
    """error / norm, 0 where both are 0."""
    return torch.where(error > 0, error / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0.0)


def right_vectors(matrices: Tensor, norms: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Orthonormal rows [heads, rank, columns], strongest first, which span each of `matrices`
    [heads, rows, columns] of these norms up to about half of the relative `tolerance`, and their
    images [heads, rank, rows]."""
    heads, rows, columns = matrices.shape
    if min(rows, columns) < _MIN_SKETCHED:
        vectors = _exact(matrices)
        return vectors, vectors @ matrices.mT
    vectors, images = matrices.new_zeros(heads, 0, columns), matrices.new_zeros(heads, 0, rows)
    todo = torch.arange(heads, device=matrices.device)
    for share in (*_SKETCH_SHARES, 1):
        remaining = matrices if len(todo) == heads else matrices[todo]
        replacement = _exact(remaining) if share == 1 else _sketched(remaining, columns // share)
        image = replacement @ remaining.mT
        vectors, images = _set_rows(vectors, todo, replacement), _set_rows(images, todo, image)
        captured = image.flatten(1).norm(dim=1).square()
        spans = captured >= (1 - (_MISSED * tolerance) ** 2) * norms[todo].square()
        todo = todo[~spans]
        if not len(todo):
            break
    return vectors, images


def _exact(matrices: Tensor) -> Tensor:
    """All right singular vectors, by the Gram matrix of the shorter side in float64."""
    rows, columns = matrices.shape[1:]
    exact = matrices.double()
    gram = exact.mT @ exact if columns <= rows else exact @ exact.mT
    right: Tensor = torch.linalg.eigh(gram).eigenvectors.mT.flip(1)
    if columns > rows:
        right = right @ exact
    lengths: Tensor = right.norm(dim=-1, keepdim=True)
    return (right / lengths.clamp_min(1e-300)).to(matrices)


def _sketched(matrices: Tensor, rank: int) -> Tensor:
    """Approximate right singular vectors from one step of subspace iteration."""
    guess = torch.randn(matrices.shape[2], rank, generator=torch.Generator().manual_seed(0))
    image = (matrices @ guess.to(matrices)).mT
    # States lack rank, so with the ridge this basis of rows is orthonormal in the strong directions
    # only. The vectors are orthogonal whatever it is.
    gram = image @ image.mT
    ridge = 1e-6 * gram.diagonal(dim1=1, dim2=2).sum(1, keepdim=True).clamp_min(1e-30)
    factor = torch.linalg.cholesky_ex(gram + torch.diag_embed(ridge.expand(-1, rank))).L
    spanned = torch.linalg.solve_triangular(factor, image, upper=False) @ matrices
    exact = spanned.double()
    rotation = torch.linalg.eigh(exact @ exact.mT).eigenvectors
    vectors = rotation.mT.flip(1).to(spanned) @ spanned
    lengths = vectors.norm(dim=-1, keepdim=True)
    kept = lengths > 1e-3 * lengths[:, :1]  # in float32, weaker ones are errors of the strongest
    normalized: Tensor = vectors * (kept / lengths.clamp_min(1e-30))
    return normalized


def _set_rows(vectors: Tensor, heads: Tensor, replacement: Tensor) -> Tensor:
    """`vectors` with those of `heads` replaced, filled up with zeros to one rank."""
    if len(heads) == len(vectors):
        return replacement
    missing = replacement.shape[1] - vectors.shape[1]
    replacement = pad(replacement, (0, 0, 0, max(0, -missing)))
    return pad(vectors, (0, 0, 0, max(0, missing))).index_copy_(0, heads, replacement)
