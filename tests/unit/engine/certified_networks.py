"""Tiny networks for certification tests, small enough for dense Hessians and exact minimisers."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from worker.engine.networks.architectures import AllCnn, Mlp, Spec, initial_point
from worker.engine.networks.lanczos import Gaussian
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows

DENSE = (
    Mlp((4, 3, 3), "gelu"),
    Mlp((3, 3, 3, 2), "silu"),
    Mlp((4, 3, 3, 1), "tanh"),
    Mlp((3, 3, 3, 3), "softplus"),
)
CONVOLUTIONAL = (
    AllCnn((1, 5, 4), 3, ((2, 2), (2, 1)), "gelu"),
    AllCnn((2, 4, 4), 2, ((2, 1), (2, 3)), "tanh"),
)


def network_problem(
    spec: Spec, *, seed: int = 0, rows: int = 30, lam: float = 0.1, scale: float = 1.0
) -> NetworkObjective:
    """Build an objective on random rows, anchored at `scale` times a random initial point."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, spec.inputs))
    y = rng.standard_normal(rows) if spec.outputs == 1 else rng.integers(0, spec.outputs, rows)
    return NetworkObjective(ArrayRows(x, y), spec, lam, scale * initial_point(spec, seed))


def loss_of(objective: NetworkObjective) -> Callable[[Tensor], Tensor]:
    """Return f as a differentiable function."""
    ((x, y),) = objective.rows.chunks(objective.rows.count)

    def f(w: Tensor) -> Tensor:
        offset = w - objective.anchor
        mean = objective.loss.each(objective.logits(w, x.double()), y).mean()
        return mean + objective.lam / 2 * (offset @ offset)

    return f


def dense_hessian(objective: NetworkObjective, w: Tensor) -> Tensor:
    matrix: Tensor = torch.func.hessian(loss_of(objective))(w)
    return matrix


def minimiser(objective: NetworkObjective, start: Tensor) -> Tensor:
    """Minimise to full precision by Newton steps with dense Hessians, damped by their smallest eigenvalue."""
    f = loss_of(objective)
    w = start.clone()
    for _ in range(60):
        g, H = torch.func.grad(f)(w), dense_hessian(objective, w)
        if float(g.norm()) < 1e-14:
            break
        lift = max(0.0, 1e-3 - float(torch.linalg.eigvalsh(H)[0]))
        step = torch.linalg.solve(H + lift * torch.eye(len(w), dtype=w.dtype), g)
        size = 1.0
        while size > 1e-6 and f(w - size * step) > f(w) + 1e-15:
            size /= 2
        w = w - size * step
    return w


def seeded(seed: int) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    return lambda count: torch.randn(count, generator=generator, dtype=torch.float64)
