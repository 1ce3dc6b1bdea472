"""The convex model families: losses of a linear predictor with closed-form derivatives in the logits."""

import torch
from torch import Tensor

from worker.engine import validation
from worker.engine.linear import LinearObjective
from worker.engine.objective import Reduce, no_reduction
from worker.engine.rounding import LOGISTIC_LINK, RIDGE_LINK, softmax_link
from worker.engine.rows import Rows


class Softmax(LinearObjective):
    """Multinomial logistic regression: ℓ = log Σ_c exp z_c - z_y with labels 0 … classes-1."""

    def __init__(
        self,
        rows: Rows,
        classes: int,
        lam: float,
        anchor: Tensor | None = None,
        *,
        bias: bool = True,
        reduce: Reduce = no_reduction,
        device: torch.device | str = "cpu",
    ) -> None:
        validation.check_classes(classes)
        super().__init__(rows, lam, anchor, outputs=classes, bias=bias, reduce=reduce, device=device)
        self.link = softmax_link(classes)

    def check_targets(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless every target is a whole number in 0 … classes-1."""
        validation.check_labels(y, self.outputs, first)

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and q = p - e_y. (classes, c), (c,) -> (), (classes, c). Overwrites z."""
        labels = y.long()[None]
        z -= z.amax(0)
        own = z.gather(0, labels).sum()
        z.exp_()
        mass = z.sum(0)
        loss = mass.log().sum() - own
        q = z.div_(mass)
        return loss, q.scatter_add_(0, labels, q.new_full((1, len(y)), -1.0))

    def curvature(self, z: Tensor) -> Tensor:
        """Return the probabilities p = softmax(z). (classes, c) -> (classes, c)"""
        return torch.softmax(z, 0)

    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        """Return (diag p - ppᵀ)·u for every row. (classes, c), (…, classes, c) -> (…, classes, c)"""
        bent = state * u
        return bent.addcmul_(state, bent.sum(-2, keepdim=True), value=-1)

    def curve_diagonal(self, state: Tensor) -> Tensor:
        """Return the diagonal of diag p - ppᵀ for every row. (classes, c) -> (classes, c)"""
        return state * (1 - state)

    def curve_mean(self, state: Tensor) -> Tensor:
        """Return diag p - ppᵀ averaged over rows. (classes, c) -> (classes, classes)"""
        return torch.diag(state.mean(1)) - state @ state.T / state.shape[1]


class Logistic(LinearObjective):
    """Binary logistic regression: ℓ = log(1 + exp z) - y·z with labels 0 and 1."""

    link = LOGISTIC_LINK

    def __init__(
        self,
        rows: Rows,
        lam: float,
        anchor: Tensor | None = None,
        *,
        bias: bool = True,
        reduce: Reduce = no_reduction,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(rows, lam, anchor, outputs=1, bias=bias, reduce=reduce, device=device)

    def check_targets(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless every target is 0 or 1."""
        validation.check_labels(y, 2, first)

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and q = σ(z) - y, free of overflow. (1, c), (c,) -> (), (1, c)"""
        target = y.to(z.dtype)[None]
        small = torch.exp(-z.abs())
        loss = (torch.clamp(z, min=0) + torch.log1p(small) - target * z).sum()
        return loss, torch.where(z >= 0, 1.0, small) / (1 + small) - target

    def curvature(self, z: Tensor) -> Tensor:
        """Return σ(z)·σ(-z), the second derivative of the loss. (1, c) -> (1, c)"""
        small = torch.exp(-z.abs())
        return small / (1 + small).square()

    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        """Multiply u by the second derivative, row by row. (1, c), (…, 1, c) -> (…, 1, c)"""
        return state * u

    def curve_diagonal(self, state: Tensor) -> Tensor:
        """Return the second derivative itself. (1, c) -> (1, c)"""
        return state

    def curve_mean(self, state: Tensor) -> Tensor:
        """Return the second derivative averaged over rows. (1, c) -> (1, 1)"""
        return state.mean(1, keepdim=True)


class Ridge(LinearObjective):
    """Ridge regression: ℓ = ½(z - y)² with real targets."""

    link = RIDGE_LINK

    def __init__(
        self,
        rows: Rows,
        lam: float,
        anchor: Tensor | None = None,
        *,
        bias: bool = True,
        reduce: Reduce = no_reduction,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(rows, lam, anchor, outputs=1, bias=bias, reduce=reduce, device=device)

    def check_targets(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless every target is finite."""
        validation.check_real(y, first)

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and q = z - y. (1, c), (c,) -> (), (1, c)"""
        q = z - y.to(z.dtype)[None]
        return q.square().sum() / 2, q

    def curvature(self, z: Tensor) -> Tensor:
        """Return ones, the second derivative of the loss. (1, c) -> (1, c)"""
        return torch.ones_like(z)

    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        """Multiply u by the second derivative, row by row. (1, c), (…, 1, c) -> (…, 1, c)"""
        return state * u

    def curve_diagonal(self, state: Tensor) -> Tensor:
        """Return the second derivative itself. (1, c) -> (1, c)"""
        return state

    def curve_mean(self, state: Tensor) -> Tensor:
        """Return the second derivative averaged over rows. (1, c) -> (1, 1)"""
        return state.mean(1, keepdim=True)
