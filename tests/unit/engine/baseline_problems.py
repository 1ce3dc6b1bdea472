"""Erasures on small problems, and dense counterparts of matrix-free operators."""

from dataclasses import dataclass

import numpy as np
import torch

from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.objective import EXACT, CertifiedGradient, Evaluation, HessianOperator, Objective, Sampling
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import train


@dataclass(frozen=True)
class Erasure:
    """The objective on the retained rows, the minimiser on all rows, and the minimiser to reach."""

    kept: LinearObjective
    start: torch.Tensor
    truth: torch.Tensor
    erased: int

    def distance(self, w: torch.Tensor) -> float:
        return float(torch.linalg.vector_norm(w - self.truth))


def erasure(family: str, *, n: int = 60, erased: int = 5, lam: float = 0.05, seed: int = 0) -> Erasure:
    """Build an erasure with rows on the unit sphere and no bias, as the publications assume."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    scores = features @ rng.standard_normal((5, 3)) * 4
    labels = np.argmax(scores, axis=1) if family == "softmax" else (scores[:, 0] > 0).astype(np.int64)
    targets = scores[:, 0] if family == "ridge" else labels
    # biased: the rows of one class, or with the largest targets, go first
    order = np.argsort(-targets, kind="stable")

    def on(rows: np.ndarray) -> LinearObjective:
        data = ArrayRows(features[rows], targets[rows])
        if family == "softmax":
            return Softmax(data, 3, lam, bias=False)
        return (Ridge if family == "ridge" else Logistic)(data, lam, bias=False)

    kept = on(order[erased:])
    start = train(on(order), target=1e-9).w
    return Erasure(kept, start, train(kept, target=1e-9).w, erased)


def dense_hessian(objective: Objective, w: torch.Tensor) -> torch.Tensor:
    operator = objective.hessian(w)
    columns = [operator.product(unit) for unit in torch.eye(len(w), dtype=torch.float64)]
    matrix = torch.stack(columns, 1)
    return (matrix + matrix.T) / 2


class Wavy:
    """½·λ‖w‖² + c·Σ cos w_i: smooth, not convex for c > λ, with known constants."""

    def __init__(self, *, lam: float, waves: float, dimension: int = 4) -> None:
        self.lam, self.waves, self.dimension = lam, waves, dimension
        self.rows = ArrayRows(np.zeros((10, 1)), np.zeros(10))
        self.anchor = torch.zeros(dimension, dtype=torch.float64)
        self.curvature_floor = lam - waves

    def value(self, w: torch.Tensor) -> float:
        return float(self.lam / 2 * w @ w + self.waves * w.cos().sum())

    def gradient(self, w: torch.Tensor) -> torch.Tensor:
        return self.lam * w - self.waves * w.sin()

    def value_and_gradient(self, w: torch.Tensor) -> tuple[float, torch.Tensor]:
        return self.value(w), self.gradient(w)

    def evaluate(self, w: torch.Tensor, *, single: bool = False) -> Evaluation:
        gradient = self.gradient(w)
        return Evaluation(self.value(w), gradient, float(torch.linalg.vector_norm(gradient)), 0.0, 1.0)

    def certified_gradient(self, w: torch.Tensor) -> CertifiedGradient:
        return CertifiedGradient(self.evaluate(w).norm, 0.0)

    def hessian(self, w: torch.Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        return _Diagonal(self.lam - self.waves * w.cos())

    def hvp(self, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.hessian(w).product(v)


@dataclass(frozen=True)
class _Diagonal:
    diagonal: torch.Tensor
    fraction: float = 1.0

    def product(self, v: torch.Tensor) -> torch.Tensor:
        return self.diagonal * v

    def approximate_inverse(self, rank: int) -> None:
        return None
