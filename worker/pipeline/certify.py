"""Stage 3, certify: is Δ ≤ Δ*, and does the model's lifetime have room? Outcomes are values."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from sqlalchemy import select
from torch import Tensor

from app.db.states import HeldReason
from app.db.tables import Certificate
from certificate import envelope, statement
from certificate.chain import extend_lifetime
from certificate.predicate import Lifetime
from worker.engine.trust_region import Outcome, Solution
from worker.pipeline.context import Context
from worker.pipeline.solve import Mechanism

if TYPE_CHECKING:
    from worker.pipeline.release import Draft
    from worker.pipeline.resolve import Swap

# σ must dwarf the spacing of floats at the weights, or the grid would show through the noise.
SMALLEST_NOISE_IN_ULPS = 2.0**20


@dataclass(frozen=True)
class Refusal:
    reason: HeldReason
    detail: str
    draw: "tuple[Draft, Swap] | None" = None
    """What was drawn and must be kept for a decision."""


def release_shift(context: Context, mechanism: Mechanism) -> float:
    """s = Δ*/σ of one release; a retraining adds nothing."""
    policy = context.manifest.policy
    return 0.0 if mechanism == "retrain" else policy.target_distance / policy.sigma


def lifetime_after(context: Context, mechanism: Mechanism | Literal["discarded"], shift: float) -> Lifetime:
    """The running sum with one more release; the policy alone decides it, before anything is solved."""
    policy = context.manifest.policy
    with context.services.database.reading() as session:
        last = session.scalar(
            select(Certificate)
            .where(Certificate.model_id == context.model.id)
            .order_by(Certificate.chain_index.desc())
            .limit(1)
        )
    previous = (
        None if last is None else statement.parse(envelope.parse(last.envelope).payload).predicate.lifetime
    )
    return extend_lifetime(
        previous,
        None if last is None else last.digest,
        mechanism=mechanism,
        shift=shift,
        failure_probability=0.0,
        assurance="proved",
        delta=policy.delta,
        cap=policy.lifetime_epsilon,
    )


def budget_refusal(lifetime: Lifetime) -> Refusal | None:
    if lifetime.cap is None or lifetime.epsilon_total is None or lifetime.epsilon_total <= lifetime.cap:
        return None
    spent = (
        f"one more release would bring ε to {lifetime.epsilon_total:.4g}, past the cap of {lifetime.cap:.4g}"
    )
    return Refusal(HeldReason.BUDGET, spent)


def distance_refusal(context: Context, solution: Solution) -> Refusal | None:
    target = context.manifest.policy.target_distance
    if solution.outcome == Outcome.CERTIFIED and solution.distance <= target:
        return None
    # By which power of ten, not by how much: a policy must not be fitted to what the data gave.
    excess = solution.distance / target
    far = f"within a factor of 1e{math.ceil(math.log10(excess))}" if 1 < excess < math.inf else "not"
    detail = f"{solution.outcome}: the target distance was {far} reached"
    return Refusal(HeldReason.NOT_CERTIFIABLE, detail)


def noise_refusal(context: Context, w: Tensor) -> Refusal | None:
    numbers = torch.finfo(w.dtype)
    spacing = numbers.eps * max(float(w.abs().max()), numbers.tiny)
    sigma = context.manifest.policy.sigma
    if sigma >= SMALLEST_NOISE_IN_ULPS * spacing:
        return None
    detail = f"σ = {sigma:.3g} is too small against the spacing of floats at the weights"
    return Refusal(HeldReason.NOT_CERTIFIABLE, detail)
