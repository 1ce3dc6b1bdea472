"""Hessian-vector products of a linear predictor: H·v = (1/k)·Jᵀ(∂²ℓ/∂z²)J·v + λv over k rows."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from worker.engine.objective import ApproximateInverse
from worker.engine.preconditioner import build

if TYPE_CHECKING:
    from worker.engine.linear import LinearObjective

PRECONDITIONER_ROWS = 1536  # More rows hardly improve a preconditioner.


class CachedHessian:
    """Hessian operator that keeps the rows and their curvature at w in memory.

    Products run in the precision of the stored rows. Vectors go in and come out in float64.
    """

    def __init__(self, objective: "LinearObjective", w: Tensor, features: Tensor, seed: int = 0) -> None:
        self._objective = objective
        self._features = features  # (k, width)
        self._seed = seed
        self._state = objective.curvature(objective.logits(w, features))  # (outputs, k)
        local = torch.tensor(float(len(features)), dtype=torch.float64, device=objective.device)
        self._total = float(objective.reduce(local))
        self.fraction = len(features) / objective.rows.count

    def product(self, v: Tensor) -> Tensor:
        """Return H·v over the stored rows of all ranks. (d,) -> (d,)"""
        objective = self._objective
        bent = objective.curve(self._state, objective.logits(v, self._features))
        total = objective.reduce(objective.pullback(bent, self._features).to(torch.float64))
        return total / self._total + objective.lam * v

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:
        """Build the Kronecker preconditioner from at most `PRECONDITIONER_ROWS` of the stored rows."""
        objective = self._objective
        stride = -(-len(self._features) // PRECONDITIONER_ROWS)
        features, state = objective.extended(self._features[::stride]), self._state[:, ::stride]
        weights, mean = objective.curve_diagonal(state).sum(0), objective.curve_mean(state)
        inverse = build(features, weights, mean, lam=objective.lam, rank=rank, seed=self._seed)
        if inverse is None:
            return None

        def apply(r: Tensor) -> Tensor:  # (d,) -> (d,)
            return objective.ungrouped(inverse.apply(objective.grouped(r).to(features.dtype))).to(r.dtype)

        return ApproximateInverse(apply, passes=2 * len(features) / objective.rows.count)


class StreamedHessian:
    """Exact Hessian operator that rereads all rows in float64 for each product, in constant memory."""

    fraction = 1.0

    def __init__(self, objective: "LinearObjective", w: Tensor) -> None:
        self._objective = objective
        self._w = w

    def product(self, v: Tensor) -> Tensor:
        """Return H·v over all rows. (d,) -> (d,)"""
        objective = self._objective
        total = torch.zeros_like(v)
        for x, _ in objective.chunks():
            state = objective.curvature(objective.logits(self._w, x))
            total += objective.pullback(objective.curve(state, objective.logits(v, x)), x)
        return objective.reduce(total) / objective.total + objective.lam * v

    def approximate_inverse(self, rank: int) -> None:
        """Return None: preconditioners are built from sampled operators."""
