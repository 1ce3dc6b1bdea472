"""A preconditioner for linearised networks: one Kronecker product per layer, damped by λ.

The block of the Hessian that belongs to one layer is a mean over rows of BᵀSB ⊗ ppᵀ, where p is the layer's
input, B = ∂z/∂Z and S = ∂²ℓ/∂z². The preconditioner replaces the mean of products by the product of means
(K-FAC, Martens & Grosse 2015; for convolutions Grosse & Martens 2016) and drops the blocks between layers:

    K = G ⊗ A + λI,    A = mean of ppᵀ, weighted by tr S,    G = mean of BᵀSB.

K is inverted exactly through the eigenvectors of G and A. G is estimated from one pulled-back vector L·r per
row, where L·Lᵀ = S and r has random signs, so that E[L·r·rᵀ·Lᵀ] = S. Parameters that belong to no linear or
convolutional layer are scaled by their mean curvature.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Factors:
    """The two factors of one layer, as sums over rows until they are scaled."""

    inputs: Tensor  # (k, k), or (k + 1, k + 1) with the constant input of a bias
    outputs: Tensor  # (out, out)

    def plus(self, other: "Factors") -> "Factors":
        """Add the sums of further rows."""
        return Factors(self.inputs + other.inputs, self.outputs + other.outputs)

    def scaled(self, *, inputs: float, outputs: float) -> "Factors":
        """Multiply both factors by constants."""
        return Factors(self.inputs * inputs, self.outputs * outputs)


@dataclass(frozen=True, slots=True)
class _Block:
    """The inverse of one layer's block, in the eigenvectors of its factors."""

    names: tuple[str, ...]  # weight, and bias if it moves
    rows_basis: Tensor  # (k, k)
    outputs_basis: Tensor  # (out, out)
    inverse: Tensor  # (out, k): 1/(g_i·a_j + λ)

    def apply(self, matrix: Tensor) -> Tensor:
        turned = self.outputs_basis.T @ matrix @ self.rows_basis
        return self.outputs_basis @ (turned * self.inverse) @ self.rows_basis.T


def factors_of(columns: Tensor, delta: Tensor, positions: int, weights: Tensor, *, bias: bool) -> Factors:
    """Return the factors of a layer from its columns (k, n), δ (out, n) and the weights (c,) of the rows.

    The weights say how many rows of the data each row stands for, times its curvature for the input side.
    """
    if bias:
        columns = torch.cat([columns, columns.new_ones(1, columns.shape[1])])
    spread = weights.repeat_interleave(positions)
    inputs = (columns * spread) @ columns.T
    return Factors(inputs, delta @ delta.T / positions)


def build(
    factors: Mapping[str, Factors],
    diagonal: Tensor,
    shapes: Shapes,
    *,
    lam: float,
) -> Callable[[Tensor], Tensor] | None:
    """Return r ↦ K⁻¹·r, or None if a factor is not finite. `diagonal` (d,) estimates the Hessian's diagonal.

    `shapes` are the moving parameters in the order of the flat vector.
    """
    places = _places(shapes)
    blocks: list[_Block] = []
    for name, found in factors.items():
        names = tuple(part for part in (f"{name}.weight", f"{name}.bias") if part in places)
        if not bool(torch.isfinite(found.inputs).all() & torch.isfinite(found.outputs).all()):
            return None
        try:
            a, rows_basis = torch.linalg.eigh(found.inputs)
            g, outputs_basis = torch.linalg.eigh(found.outputs)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None
        inverse = 1 / (g.clamp(min=0)[:, None] * a.clamp(min=0)[None] + lam)
        blocks.append(_Block(names, rows_basis, outputs_basis, inverse))
    covered = {part for block in blocks for part in block.names}
    scales = torch.ones_like(diagonal)
    for name, (place, _) in places.items():
        if name not in covered:
            mean = float(diagonal[place].mean())
            scales[place] = 1 / (max(0.0, mean if math.isfinite(mean) else 0.0) + lam)

    def apply(r: Tensor) -> Tensor:
        out = r * scales
        for block in blocks:
            weight, shape = places[block.names[0]]
            matrix = r[weight].view(shape[0], -1)
            if len(block.names) == 2:
                matrix = torch.cat([matrix, r[places[block.names[1]][0]][:, None]], 1)
            solved = block.apply(matrix.to(block.inverse.dtype)).to(r.dtype)
            out[weight] = (solved[:, :-1] if len(block.names) == 2 else solved).reshape(-1)
            if len(block.names) == 2:
                out[places[block.names[1]][0]] = solved[:, -1]
        return out

    return apply


def _places(shapes: Shapes) -> dict[str, tuple[slice, Sequence[int]]]:
    """Return where each parameter is in the flat vector, and its shape."""
    places: dict[str, tuple[slice, Sequence[int]]] = {}
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        places[name] = slice(start, end), shape
        start = end
    return places
