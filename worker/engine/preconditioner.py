"""An approximate inverse of the Hessian that is cheap to build from a sample and cheap to apply.

The Hessian of a linear predictor is a mean of Kronecker products, H = mean(A_i ⊗ x_i x_iᵀ) + λI with A_i =
∂²ℓ/∂z² of row i. The preconditioner replaces the mean of products by a product of means (the idea of K-FAC,
Martens & Grosse 2015):

    K = Ā ⊗ B + λI,    Ā = mean(A_i),    B = Σ tr(A_i)·x_i x_iᵀ / Σ tr(A_i).

K is inverted through the eigenvectors of Ā (outputs × outputs) and the leading eigenvectors of B, found by a
randomised range finder (Halko, Martinsson & Tropp 2011, alg. 4.3). Beyond those, B is treated as a multiple
of the identity. With one output, K equals the sampled Hessian up to that tail.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Kronecker:
    """K⁻¹ acting on parameters arranged as (outputs, width)."""

    outputs_basis: Tensor  # (outputs, outputs)
    rows_basis: Tensor  # (width, k), orthonormal columns
    inside: Tensor  # (outputs, k): 1/(α_c·β_j + λ)
    outside: Tensor  # (outputs, 1): 1/(α_c·tail + λ)

    def apply(self, r: Tensor) -> Tensor:
        """Return K⁻¹·r. (outputs, width) -> (outputs, width)"""
        turned = self.outputs_basis.T @ r
        along = turned @ self.rows_basis
        rest = turned - along @ self.rows_basis.T
        solved = (along * self.inside) @ self.rows_basis.T + rest * self.outside
        return self.outputs_basis @ solved


def build(
    features: Tensor, weights: Tensor, mean: Tensor, *, lam: float, rank: int, seed: int
) -> Kronecker | None:
    """Build K⁻¹ from features (k, width), weights tr(A_i) (k,) and Ā (outputs, outputs).

    Returns None if the features overflow or the eigendecomposition does not converge.
    """
    scaled = features * (weights / weights.sum().clamp(min=1e-30)).sqrt()[:, None]  # B = scaledᵀ·scaled
    total = scaled.square().sum()
    if not bool(torch.isfinite(total.square()) & torch.isfinite(mean).all()):
        return None
    width = features.shape[1]
    try:
        basis, values = _leading(scaled, min(rank, len(features)), seed)
        alpha, outputs_basis = torch.linalg.eigh(mean)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None  # The features are scaled beyond what float32 resolves.
    tail = ((total - values.sum()) / max(1, width - len(values))).clamp(min=0)
    alpha = alpha.clamp(min=0)[:, None]
    return Kronecker(
        outputs_basis=outputs_basis,
        rows_basis=basis,
        inside=1 / (alpha * values[None] + lam),
        outside=1 / (alpha * tail + lam),
    )


def _leading(matrix: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return orthonormal columns (width, k) and k eigenvalues of matrixᵀ·matrix, the leading ones."""
    width = matrix.shape[1]
    if width <= 2 * rank:
        values, basis = torch.linalg.eigh(matrix.T @ matrix)
        return basis, values.clamp(min=0)
    generator = torch.Generator().manual_seed(seed)
    probe = torch.randn(width, rank, generator=generator).to(matrix.device, matrix.dtype)
    sketch, _ = torch.linalg.qr(matrix.T @ (matrix @ probe))
    image = matrix @ sketch
    values, turn = torch.linalg.eigh(image.T @ image)
    return sketch @ turn, values.clamp(min=0)
