"""M from below: the largest third derivative found by looking. An estimate for `heuristic` figures only."""

import math

import torch
from torch import Tensor

from worker.engine.networks.curvature import sampled
from worker.engine.networks.lipschitz import LipschitzBound
from worker.engine.networks.objective import Network, NetworkObjective

_STEP = 1e-4  # of the finite difference, relative to ‖w‖


def sampled_lipschitz(
    objective: NetworkObjective,
    network: Network,
    w: Tensor,
    radius: float,
    *,
    rows: int = 1024,
    starts: int = 3,
    steps: int = 8,
    seed: int = 0,
) -> LipschitzBound:
    """Ascent on |∇³f[u, u, u]| over unit u, by differences of Hessian products on a sample of the rows.

    Samples bound a supremum from below, and no safety factor mends that: there is none here.
    """
    sample = sampled(objective, network, rows)
    generator = torch.Generator().manual_seed(seed)
    length = _STEP * max(1.0, float(torch.linalg.vector_norm(w)))
    best = hessian = 0.0
    for _ in range(starts):
        u = torch.randn(objective.dimension, generator=generator, dtype=torch.float64).to(w.device)
        u /= torch.linalg.vector_norm(u)
        for _ in range(steps):
            ahead = sample.hessian(w + length * u).product(u)
            behind = sample.hessian(w - length * u).product(u)
            bend = (ahead - behind) / (2 * length)  # ∇³f[u, u, ·]
            value = float(bend @ u)
            best = max(best, float(torch.linalg.vector_norm(bend)))
            hessian = max(hessian, float(torch.linalg.vector_norm(ahead)))
            u = math.copysign(1.0, value) * bend + abs(value) * u  # shifted power step, keeps the ascent
            u /= torch.linalg.vector_norm(u).clamp(min=1e-300)
    passes = 2 * starts * steps * sample.total / objective.total
    return LipschitzBound(best, radius, hessian, 0.0, f"sampled: {starts * steps} directions", passes)
