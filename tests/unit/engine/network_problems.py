"""Tiny networks shared by the network tests, small enough for dense Hessians."""

import torch
from torch import Tensor, nn

from worker.engine.networks.architectures import AllCnn, Mlp, Spec, build, initial_point
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows

TINY: tuple[Spec, ...] = (
    Mlp((3, 4, 4, 3), "gelu"),
    Mlp((3, 4, 3), "silu"),
    Mlp((3, 4, 3), "tanh"),
    Mlp((3, 4, 4, 2), "softplus"),
    Mlp((3, 5, 1), "gelu"),
    AllCnn((1, 3, 4), 3, ((2, 2), (1, 1)), "gelu"),
    AllCnn((2, 3, 3), 2, ((1, 1), (2, 2)), "tanh"),
)


class Plugin(nn.Module):
    """The same function as a plug-in, whose layers the engine does not know."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.inner = build(spec)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits


def problem(
    spec: Spec,
    *,
    n: int = 11,
    lam: float = 0.1,
    seed: int = 0,
    scale: float = 1.0,
    plugin: bool = False,
    **options: object,
) -> NetworkObjective:
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(n, spec.inputs, generator=generator, dtype=torch.float64)
    y = torch.randint(0, spec.outputs, (n,), generator=generator)
    targets = torch.randn(n, generator=generator, dtype=torch.float64) if spec.outputs == 1 else y
    network = Plugin(spec) if plugin else spec
    return NetworkObjective(ArrayRows(x, targets), network, lam, initial_point(spec, seed), **options)  # type: ignore[arg-type]


def nearby(objective: NetworkObjective, seed: int = 1, scale: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return objective.anchor + scale * torch.randn(
        objective.dimension, generator=generator, dtype=torch.float64
    )


def value(objective: NetworkObjective, w: Tensor) -> Tensor:
    """Return f(w) written out for torch.autograd."""
    ((x, y),) = objective.rows.chunks(objective.rows.count)
    loss = objective.loss.each(objective.logits(w, x), y).mean()
    return loss + objective.lam / 2 * (w - objective.anchor).square().sum()


def dense_hessian(objective: NetworkObjective, w: Tensor) -> Tensor:
    matrix: Tensor = torch.autograd.functional.hessian(lambda at: value(objective, at), w)
    return matrix


def dense(product: object, dimension: int) -> Tensor:
    """Return the matrix of a product, column by column."""
    return torch.stack([product(unit) for unit in torch.eye(dimension, dtype=torch.float64)], 1)  # type: ignore[operator]
