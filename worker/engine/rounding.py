"""Bounds on how far float64 rounding can move a computed gradient norm (docs/maths.md, section 3).

Every bound is first-order in γ_k = k·u/(1 - k·u), the relative error of k roundings in any order, with or
without fused multiply-add (Higham 2002, §3.1). It therefore holds for whatever order a BLAS sums in.
``_INFLATION`` covers second-order terms and the rounding of the bound itself.
"""

import math
from dataclasses import dataclass

UNIT = 2.0**-53
EXP_ULPS = 4  # assumed accuracy of exp: 4 ulp, that is a relative error of 8u
_INFLATION = 1.01
_UNDERFLOW = 1e-290  # exceeds any sum of underflowed products
TINY = 1e-153  # per entry of a norm: above √2⁻¹⁰²², the most that an underflowed square can hide


def gamma(operations: float) -> float:
    """Return γ_k = k·u/(1 - k·u) for k operations, or infinity when k is too large to prove anything."""
    error = operations * UNIT
    return error / (1 - error) if error < 0.5 else math.inf


@dataclass(frozen=True, slots=True)
class Link:
    """Error bound of the residual q(z) = ∂ℓ/∂z in the 2-norm: `slope`·‖δz‖_∞ + `absolute`·u + u·‖q‖."""

    slope: float
    absolute: float


def softmax_link(classes: int) -> Link:
    """Return the error bound of a softmax residual.

    It combines ‖softmax(z + δ) - softmax(z)‖₁ ≤ ‖δ‖_∞ with the error of evaluating softmax itself
    (docs/maths.md, section 3).
    """
    return Link(slope=1.0, absolute=4.0 * EXP_ULPS + 2.0 * math.log(classes) + classes + 4.0)


LOGISTIC_LINK = Link(slope=0.25, absolute=2.0 * EXP_ULPS + 6.0)
RIDGE_LINK = Link(slope=1.0, absolute=0.0)


def logit_error(*, width: int, row_norm: float, weight_norm: float, bias: float) -> float:
    """Return the bound |ẑ - z| ≤ γ_{width+2}·(‖x‖·‖w‖ + |b|) for a dot product and one addition."""
    return gamma(width + 2) * (row_norm * weight_norm + bias) + _UNDERFLOW


@dataclass(slots=True)
class RowErrors:
    """Running sums over chunks from which the error of Σ_i q_i x_iᵀ follows."""

    link: Link
    evaluation: float = 0.0  # Σ_i ‖q̂_i - q_i‖·‖x_i‖
    mass: float = 0.0  # Σ_i ‖q̂_i‖·‖x_i‖

    def add(self, *, count: int, row_norm: float, logit: float, residual_mass: float) -> None:
        """Add a chunk of `count` rows no longer than `row_norm`, with Σ‖q̂_i‖ at most `residual_mass`."""
        each = self.link.slope * logit + self.link.absolute * UNIT
        self.evaluation += row_norm * (count * each + UNIT * residual_mass)
        self.mass += row_norm * residual_mass


def gradient_rounding(
    *,
    evaluation: float,
    mass: float,
    additions: float,
    total: int,
    pull: float,
    norm: float,
    dimension: int,
) -> float:
    """Return a bound e ≥ |fl(‖g‖) - ‖∇f(w)‖|.

    `evaluation` and `mass` are the sums of RowErrors over all rows. `additions` is the longest chain of
    additions any entry went through, `pull` is λ‖w - a‖, and `norm` is the computed ‖g‖.
    """
    loss = (evaluation + (gamma(additions) + 2 * UNIT) * mass) / total
    regulariser = gamma(4) * pull
    sum_and_norm = gamma(dimension + 6) * norm
    # Underflow loses absolute amounts, which γ must not scale.
    return _INFLATION * (loss + regulariser + sum_and_norm) + TINY * math.sqrt(dimension)
