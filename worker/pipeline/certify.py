"""Stage 3, certify: is Δ ≤ Δ*, and does the model's lifetime have room? Outcomes are values."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sqlalchemy import select
from torch import Tensor

from app.db.manifest import Manifest
from app.db.policy import Method
from app.db.states import HeldReason
from app.db.tables import Certificate
from certificate import envelope, statement
from certificate.chain import extend_lifetime
from certificate.predicate import Lifetime
from certificate.predicate_v1 import LifetimeV1
from certificate.privacy import LARGEST_DIMENSION, SMALLEST_DELTA, grid_step
from certificate.statement import AnyPredicate
from worker.engine import noise
from worker.engine.networks.kantorovich import Kantorovich
from worker.engine.networks.nearing import ENOUGH
from worker.engine.published.outcome import PublishedResult
from worker.pipeline.claim import Claim, Terms, terms_of
from worker.pipeline.context import Context
from worker.pipeline.curvature import measured, recorded
from worker.pipeline.solve import Solved

if TYPE_CHECKING:
    from worker.pipeline.release import Draft
    from worker.pipeline.resolve import Swap


@dataclass(frozen=True)
class Refusal:
    reason: HeldReason
    detail: str
    draw: "tuple[Draft, Swap] | None" = None
    """What was drawn and must be kept for a decision."""


def room_for(context: Context, mechanism: Method) -> Lifetime | Refusal:
    """The lifetime with one more release, if the policy has room for it: known before anything is solved."""
    terms, delta = terms_of(context.manifest, mechanism, context.choices), context.manifest.policy.delta
    last = _last(context)
    before = 0.0 if last is None or mechanism == "retrain" else _lifetime(last).running_failure_probability
    if delta - (before + terms.failure_probability) < SMALLEST_DELTA:
        return Refusal(HeldReason.BUDGET, "measuring curvature once more would use up δ")
    try:
        lifetime = lifetime_after(context, mechanism, terms)
    except ValueError:  # δ is spent: at the sum's size no ε can be stated any more
        return Refusal(HeldReason.BUDGET, "with one more release no ε could be stated at this δ")
    return budget_refusal(lifetime) or lifetime


def lifetime_after(context: Context, mechanism: Method | Literal["discarded"], terms: Terms) -> Lifetime:
    """The running sum with one more release."""
    last = _last(context)
    return extend_lifetime(
        None if last is None else _lifetime(last),
        None if last is None else last.digest,
        mechanism=mechanism,
        shift=terms.shift,
        failure_probability=terms.failure_probability,
        residual=terms.residual,
        assurance=terms.assurance,
        delta=context.manifest.policy.delta,
        cap=context.manifest.policy.lifetime_epsilon,
    )


def _last(context: Context) -> Certificate | None:
    with context.services.database.reading() as session:
        return session.scalar(
            select(Certificate)
            .where(Certificate.model_id == context.model.id)
            .order_by(Certificate.chain_index.desc())
            .limit(1)
        )


def _lifetime(certificate: Certificate) -> Lifetime | LifetimeV1:
    return statement.parse(envelope.parse(certificate.envelope).payload).predicate.lifetime


def budget_refusal(lifetime: Lifetime) -> Refusal | None:
    if lifetime.cap is None or lifetime.epsilon_total is None or lifetime.epsilon_total <= lifetime.cap:
        return None
    spent = (
        f"one more release would bring ε to {lifetime.epsilon_total:.4g}, past the cap of {lifetime.cap:.4g}"
    )
    return Refusal(HeldReason.BUDGET, spent)


def claim_for(context: Context, solved: Solved) -> tuple[Solved, Claim] | Refusal:
    """What may be claimed, and the point it is claimed for; or why nothing may."""
    manifest = context.manifest
    terms = terms_of(manifest, solved.mechanism, context.choices)
    if not solved.near:
        return far_off(solved.outcome, solved.distance, manifest.policy.target_distance)
    if solved.published is not None:
        return solved, _as_published(manifest, solved.published, terms)
    if terms.rule == "retrain":  # its reference is itself; how near the optimum it is, is a second figure
        posterior = solved.distance if math.isfinite(solved.distance) else None
        return solved, Claim(terms, stated=0.0, sigma=manifest.sigma, distance=0.0, posterior=posterior)
    stated, sigma = manifest.policy.target_distance, manifest.sigma
    if terms.rule == "B1":
        return solved, Claim(terms, stated=stated, sigma=sigma, distance=solved.distance)
    solved, found = measured(context, solved)
    if found.verdict not in ENOUGH:
        return _not_curved(found)
    claim = Claim(terms, stated=stated, sigma=sigma, distance=found.distance, curvature=recorded(found))
    return solved, claim


def _not_curved(found: Kantorovich) -> Refusal:
    """Which condition failed and by what power of ten; the figures themselves are functions of the rows."""
    short = [
        f"{name} {_power(have / want)} of what it must be"
        for name, have, want in (
            ("the curvature floor is", found.floor, found.needed),
            ("h is", found.h, 0.5),
            ("the distance is", found.distance, found.target),
        )
        if want > 0 and 0 < have < math.inf and math.isfinite(want)
    ]
    return Refusal(HeldReason.NOT_CERTIFIABLE, "; ".join([str(found.verdict), *short]))


def _power(ratio: float) -> str:
    """
    >>> _power(0.03), _power(40.0)
    ('about 1e-2', 'about 1e1')
    """
    return f"about 1e{math.floor(math.log10(ratio))}"


def _as_published(manifest: Manifest, result: PublishedResult, terms: Terms) -> Claim:
    """Noise last: σ follows from what the run achieved, which goes on the certificate to two digits."""
    stated = _rounded_up(result.distance)
    return Claim(
        terms,
        stated=stated,
        sigma=manifest.sigma_for(stated),
        distance=result.distance,
        posterior=result.posterior,
        method=dict(result.constants),
    )


def _rounded_up(distance: float) -> float:
    """To two digits: the rest would tell more about the rows, and nothing more to the reader.

    >>> _rounded_up(0.0121), _rounded_up(97.0)
    (0.013, 97.0)
    """
    unit = 10.0 ** (math.floor(math.log10(distance)) - 1)
    rounded = float(f"{distance:.1e}")
    return rounded if rounded >= distance else float(f"{rounded + unit:.1e}")


def far_off(outcome: str, distance: float, target: float) -> Refusal:
    # By which power of ten, not by how much: a policy must not be fitted to what the data gave.
    excess = distance / target
    far = f"within a factor of 1e{math.ceil(math.log10(excess))}" if 1 < excess < math.inf else "not"
    return Refusal(HeldReason.NOT_CERTIFIABLE, f"{outcome}: the target distance was {far} reached")


def noise_refusal(w: Tensor, sigma: float) -> Refusal | None:
    """Refuse weights that the grid of this σ cannot hold."""
    if w.numel() > LARGEST_DIMENSION:
        return Refusal(HeldReason.NOT_CERTIFIABLE, f"the model has more than {LARGEST_DIMENSION:,} weights")
    largest = float(w.abs().max()) if w.numel() else 0.0
    if largest / grid_step(sigma) < noise.LARGEST_STEPS:
        return None
    detail = (
        f"σ = {sigma:.3g} is too small beside weights of the size {largest:.1g}: the grid cannot hold them"
    )
    return Refusal(HeldReason.NOT_CERTIFIABLE, detail)


def previous_predicate(context: Context) -> AnyPredicate | None:
    """Return what the model's last certificate says; None before the first."""
    last = _last(context)
    return None if last is None else statement.parse(envelope.parse(last.envelope).payload).predicate


def sums_floating_point_noise(context: Context, mechanism: Method | Literal["discarded"]) -> bool:
    """Whether the running sum of the next release includes one of certificate format 1."""
    said = previous_predicate(context)
    if said is None or mechanism == "retrain":
        return False
    return said.format_version == 1 or any(
        name == "floating-point-noise" for name, _ in said.guarantee.assumption_texts
    )
