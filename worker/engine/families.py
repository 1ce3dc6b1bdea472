"""Losses convex in the parameters, with closed-form derivatives in the logits."""

import torch
from torch import Tensor

from worker.engine import validation
from worker.engine.linear import LinearObjective, _alone
from worker.engine.objective import Reduce
from worker.engine.rounding import LOGISTIC_LINK, RIDGE_LINK, softmax_link
from worker.engine.rows import Rows


class Softmax(LinearObjective):
    """ℓ = log Σ_c exp z_c - z_y, labels 0 … classes-1 (multinomial logistic regression)."""

    def __init__(
        self,
        rows: Rows,
        classes: int,
        lam: float,
        anchor: Tensor | None = None,
        *,
        bias: bool = True,
        reduce: Reduce = _alone,
        device: torch.device | str = "cpu",
    ) -> None:
        validation.check_classes(classes)
        super().__init__(rows, lam, anchor, outputs=classes, bias=bias, reduce=reduce, device=device)
        self.link = softmax_link(classes)

    def check_targets(self, y: Tensor, first: int) -> None:
        validation.check_labels(y, self.outputs, first)

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        labels = y.long()[None]
        z -= z.amax(0)
        own = z.gather(0, labels).sum()
        z.exp_()
        mass = z.sum(0)
        loss = mass.log().sum() - own
        q = z.div_(mass)
        return loss, q.scatter_add_(0, labels, q.new_full((1, len(y)), -1.0))

    def curvature(self, z: Tensor) -> Tensor:
        return torch.softmax(z, 0)

    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        bent = state * u  # (diag p - p pᵀ)·u
        return bent.addcmul_(state, bent.sum(0), value=-1)

    def curve_diagonal(self, state: Tensor) -> Tensor:
        return state * (1 - state)

    def curve_mean(self, state: Tensor) -> Tensor:
        return torch.diag(state.mean(1)) - state @ state.T / state.shape[1]


class Logistic(LinearObjective):
    """ℓ = log(1 + exp z) - y·z, labels 0 and 1."""

    link = LOGISTIC_LINK

    def __init__(
        self,
        rows: Rows,
        lam: float,
        anchor: Tensor | None = None,
        *,
        bias: bool = True,
        reduce: Reduce = _alone,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(rows, lam, anchor, outputs=1, bias=bias, reduce=reduce, device=device)

    def check_targets(self, y: Tensor, first: int) -> None:
        validation.check_labels(y, 2, first)

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        target = y.to(z.dtype)[None]
        small = torch.exp(-z.abs())
        loss = (torch.clamp(z, min=0) + torch.log1p(small) - target * z).sum()
        return loss, torch.where(z >= 0, 1.0, small) / (1 + small) - target

    def curvature(self, z: Tensor) -> Tensor:
        small = torch.exp(-z.abs())
        return small / (1 + small).square()  # σ(z)·σ(-z)

    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        return state * u

    def curve_diagonal(self, state: Tensor) -> Tensor:
        return state

    def curve_mean(self, state: Tensor) -> Tensor:
        return state.mean(1, keepdim=True)


class Ridge(LinearObjective):
    """ℓ = ½(z - y)², real targets."""

    link = RIDGE_LINK

    def __init__(
        self,
        rows: Rows,
        lam: float,
        anchor: Tensor | None = None,
        *,
        bias: bool = True,
        reduce: Reduce = _alone,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(rows, lam, anchor, outputs=1, bias=bias, reduce=reduce, device=device)

    def check_targets(self, y: Tensor, first: int) -> None:
        validation.check_real(y, first)

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        q = z - y.to(z.dtype)[None]
        return q.square().sum() / 2, q

    def curvature(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        return state * u

    def curve_diagonal(self, state: Tensor) -> Tensor:
        return state

    def curve_mean(self, state: Tensor) -> Tensor:
        return state.mean(1, keepdim=True)
