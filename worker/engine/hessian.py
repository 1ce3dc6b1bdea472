"""Hessian-vector products of a linear-predictor objective: H·v = (1/k)·Jᵀ(∂²ℓ/∂z²)J·v + λv."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from worker.engine.objective import ApproximateInverse
from worker.engine.preconditioner import build

if TYPE_CHECKING:
    from worker.engine.linear import LinearObjective

PRECONDITIONER_ROWS = 1536  # more rows hardly improve a preconditioner and cost as much as products


class CachedHessian:
    """Rows and their curvature held in memory, in the rows' precision; vectors go in and out in float64."""

    def __init__(self, objective: "LinearObjective", w: Tensor, features: Tensor, seed: int = 0) -> None:
        self._objective = objective
        self._features = features  # (k, width)
        self._seed = seed
        self._state = objective.curvature(objective.logits(w, features))  # (outputs, k)
        local = torch.tensor(float(len(features)), dtype=torch.float64, device=objective.device)
        self._total = float(objective.reduce(local))
        self.fraction = len(features) / objective.rows.count

    def product(self, v: Tensor) -> Tensor:  # (d,) -> (d,)
        objective = self._objective
        bent = objective.curve(self._state, objective.logits(v, self._features))
        total = objective.reduce(objective.pullback(bent, self._features).to(torch.float64))
        return total / self._total + objective.lam * v

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:
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
    """All rows in float64, read anew for each product; memory does not depend on their number."""

    fraction = 1.0

    def __init__(self, objective: "LinearObjective", w: Tensor) -> None:
        self._objective = objective
        self._w = w

    def product(self, v: Tensor) -> Tensor:  # (d,) -> (d,)
        objective = self._objective
        total = torch.zeros_like(v)
        for x, _ in objective.chunks():
            state = objective.curvature(objective.logits(self._w, x))
            total += objective.pullback(objective.curve(state, objective.logits(v, x)), x)
        return objective.reduce(total) / objective.total + objective.lam * v

    def approximate_inverse(self, rank: int) -> None:
        """None: a sampled operator is the place to take one from."""
