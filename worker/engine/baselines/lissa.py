"""LiSSA: an inverse-Hessian product from sampled products alone (Agarwal, Bullins & Hazan 2017).

Each chain iterates x ← v + x - (H_j + dI)·x/scale with H_j over a fresh batch. If scale ≥ ‖H_j + dI‖, x/scale
tends to (H + dI)⁻¹·v in expectation. Chains are averaged. The remaining error falls like (1 - μ/scale)^steps,
so a larger, safer scale costs more steps.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.baselines.lipschitz import largest_eigenvalue
from worker.engine.objective import HessianOperator, Objective, Sampling

_CHAIN_STRIDE = 1_000_003  # keeps the seeds of different chains apart


@dataclass(frozen=True, slots=True)
class LissaSettings:
    """Settings: s1 chains of s2 steps on `batch` rows each.

    `scale` None means `safety` times the estimated largest eigenvalue.
    """

    chains: int = 10
    steps: int = 1000
    batch: int = 128
    scale: float | None = None
    safety: float = 2.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LissaResult:
    """The approximate solution x. `relative_residual` is ‖(H + dI)x - v‖/‖v‖ over all rows.

    If a chain diverges the run ends with x = 0.
    """

    solution: Tensor  # (d,)
    diverged_at: int | None  # step at which a chain diverged
    scale: float
    relative_residual: float
    passes: float
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether a chain diverged."""
        return self.diverged_at is not None


def lissa(
    objective: Objective, w: Tensor, v: Tensor, settings: LissaSettings, *, damping: float = 0.0
) -> LissaResult:
    """Return x ≈ (∇²f(w) + damping·I)⁻¹·v. (d,), (d,) -> (d,)"""
    started = time.monotonic()
    exact = objective.hessian(w)
    scale, passes = settings.scale, exact.fraction
    if scale is None:
        iterations = 10
        scale = settings.safety * (largest_eigenvalue(exact, w, iterations=iterations) + damping)
        passes += iterations * exact.fraction
    total, diverged_at = torch.zeros_like(v), None
    chains = (
        settings.chains if settings.batch < objective.rows.count else 1
    )  # without sampling all chains are equal
    for chain in range(chains):
        draws = _operators(objective, w, settings, chain, exact)
        x, failed, spent = _chain(draws, v, settings.steps, scale=scale, damping=damping)
        passes += spent
        if failed is not None:
            diverged_at = failed
            total.zero_()
            break
        total += x
    solution = total / (scale * chains)
    residual = exact.product(solution) + damping * solution - v
    return LissaResult(
        solution=solution,
        diverged_at=diverged_at,
        scale=scale,
        relative_residual=_norm(residual) / _norm(v) if _norm(v) > 0 else 0.0,
        passes=passes + exact.fraction,
        seconds=time.monotonic() - started,
    )


def _chain(
    draws: Iterator[HessianOperator], v: Tensor, steps: int, *, scale: float, damping: float
) -> tuple[Tensor, int | None, float]:
    """Return the x of one chain, the step at which it diverged if it did, and the passes it took.

    While every ‖I - (H_j + dI)/scale‖ ≤ 1, x is a sum of j + 1 vectors no longer than v. A longer x therefore
    proves that a sampled Hessian is indefinite or larger than twice the scale. Without this test such a chain
    would return a large finite vector that looks like an answer.
    """
    x, length, passes = v.clone(), _norm(v), 0.0
    for step, operator in zip(range(1, steps + 1), draws, strict=False):
        passes += 2 * operator.fraction  # the logits at w, and the product
        x = v + x - (operator.product(x) + damping * x) / scale
        if not _norm(x) <= (step + 1) * length * (1 + 1e-6):
            return x, step, passes
    return x, None, passes


def _operators(
    objective: Objective, w: Tensor, settings: LissaSettings, chain: int, exact: HessianOperator
) -> Iterator[HessianOperator]:
    """Yield an operator over a fresh batch for every step, or over all rows if a batch would hold them."""
    for draw in itertools.count(settings.seed + chain * _CHAIN_STRIDE):
        if settings.batch >= objective.rows.count:
            yield exact
        else:
            yield objective.hessian(w, Sampling(rows=settings.batch, seed=draw))


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))
