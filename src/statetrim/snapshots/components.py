"""Right singular vectors of many matrices at once: a random subspace, with the exact answer as
fallback.

A subspace that misses too much only costs bytes: `coding` measures what it decodes.
"""

import torch
from torch import Tensor

_SKETCH_SHARES = (8, 3)  # a subspace has an eighth of the columns, then a third
_MIN_SKETCHED = 96  # rows and columns; of smaller matrices the exact answer costs no more
_MISSED = 0.5  # the error left outside a subspace may be this share of the tolerance


def right_vectors(matrices: Tensor, tolerance: float, start: Tensor | None = None) -> Tensor:
    """Orthonormal rows [heads, rank, columns], strongest first, which span each of `matrices`
    [heads, rows, columns] up to about half of the relative `tolerance`.

    `start` [heads, rank, columns] are vectors expected to be near, such as those of the state some
    tokens earlier.
    """
    heads, rows, columns = matrices.shape
    if min(rows, columns) < _MIN_SKETCHED:
        return _exact(matrices)
    vectors = matrices.new_zeros(heads, 0, columns)
    todo = torch.arange(heads, device=matrices.device)
    energy = torch.linalg.vector_norm(matrices, dim=(1, 2)).square()
    generator = torch.Generator().manual_seed(0)
    for share in _SKETCH_SHARES:
        width = columns // share
        guess = (
            torch.randn(width, columns, generator=generator).to(matrices).expand(len(todo), -1, -1)
        )
        if start is not None:
            guess = torch.cat([start[todo], guess[:, : max(4, width // 4)]], 1)
        remaining = matrices if len(todo) == heads else matrices[todo]
        replacement, captured = _sketched(remaining, guess)
        vectors = _set_rows(vectors, todo, replacement)
        missed = energy[todo] - captured > (_MISSED * tolerance) ** 2 * energy[todo]
        todo, start = todo[missed], None
        if not len(todo):
            return vectors
    return _set_rows(vectors, todo, _exact(matrices[todo]))


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


def _sketched(matrices: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
    """Approximate right singular vectors from one step of subspace iteration, and the energy
    [heads] that they capture. QR, because Cholesky fails on states, which lack rank."""
    basis = torch.linalg.qr(matrices.mT @ (matrices @ guess.mT)).Q
    image = matrices @ basis
    energies, rotation = torch.linalg.eigh(image.mT @ image)
    vectors = rotation.mT.flip(1) @ basis.mT
    return vectors, energies.clamp_min(0).sum(1)


def _set_rows(vectors: Tensor, heads: Tensor, replacement: Tensor) -> Tensor:
    """`vectors` [all heads, rank, columns] with those of `heads` replaced, filled up with zeros to
    one rank."""
    missing = replacement.shape[1] - vectors.shape[1]
    vectors = torch.nn.functional.pad(vectors, (0, 0, 0, max(0, missing)))
    vectors[heads] = torch.nn.functional.pad(replacement, (0, 0, 0, max(0, -missing)))
    return vectors
