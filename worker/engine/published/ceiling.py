"""The largest Hessian eigenvalue by power iteration."""

import torch
from torch import Tensor

from worker.engine.objective import HessianOperator


def curvature_ceiling(
    operator: HessianOperator, like: Tensor, *, iterations: int = 20, seed: int = 0
) -> float:
    """A Rayleigh quotient: never above the largest |eigenvalue|, so an estimate of L from below."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(len(like), generator=generator, dtype=torch.float64).to(like.device)
    estimate = 0.0
    for _ in range(iterations):
        v = v / torch.linalg.vector_norm(v)
        image = operator.product(v)
        estimate = max(estimate, abs(float(v @ image)))
        v = image
    return estimate
