"""A model's lifetime: the privacy loss of its releases so far, and whether there is room for another."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select

from app.db.states import HeldReason
from app.db.tables import Certificate
from lethe.certificate import envelope, statement
from lethe.certificate.chain import extend_lifetime
from lethe.certificate.predicate import Assurance, Lifetime, Rule
from lethe.certificate.predicate_v1 import LifetimeV1
from lethe.certificate.privacy import SMALLEST_DELTA
from lethe.certificate.statement import AnyPredicate
from lethe.policy import Method, Policy
from worker.context import JobContext, Refusal

Mechanism = Method | Literal["discarded"]


@dataclass(frozen=True)
class Terms:
    """What one release adds to the model's privacy loss. The manifest fixes it before the data is read."""

    rule: Rule
    assurance: Assurance
    shift: float
    failure_probability: float
    residual: float


@dataclass(frozen=True)
class ChainHead:
    """The last certificate of a model: its digest, and the privacy loss up to and including it."""

    lifetime: Lifetime | LifetimeV1
    digest: str


def read_chain_head(context: JobContext) -> ChainHead | None:
    """Return the head of the model's certificate chain, or None before the first certificate."""
    last = _last_certificate(context)
    return None if last is None else ChainHead(_predicate_of(last).lifetime, last.digest)


def previous_predicate(context: JobContext) -> AnyPredicate | None:
    """Return what the model's last certificate states, or None before the first."""
    last = _last_certificate(context)
    return None if last is None else _predicate_of(last)


def _last_certificate(context: JobContext) -> Certificate | None:
    with context.services.database.reading() as session:
        return session.scalar(
            select(Certificate)
            .where(Certificate.model_id == context.model.id)
            .order_by(Certificate.chain_index.desc())
            .limit(1)
        )


def _predicate_of(certificate: Certificate) -> AnyPredicate:
    return statement.parse(envelope.parse(certificate.envelope).payload).predicate


def extend(policy: Policy, head: ChainHead | None, mechanism: Mechanism, terms: Terms) -> Lifetime:
    """Return the lifetime with one more release. Raises ValueError if no ε can be stated at this δ."""
    return extend_lifetime(
        None if head is None else head.lifetime,
        None if head is None else head.digest,
        mechanism=mechanism,
        shift=terms.shift,
        failure_probability=terms.failure_probability,
        residual=terms.residual,
        assurance=terms.assurance,
        delta=policy.delta,
        cap=policy.lifetime_epsilon,
    )


def reserve(policy: Policy, head: ChainHead | None, mechanism: Method, terms: Terms) -> Lifetime | Refusal:
    """Return the lifetime with one more release if the policy has room for it.

    The manifest fixes the terms, so this is decided before anything is solved.
    """
    carries_on = head is not None and mechanism != "retrain"
    spent = head.lifetime.running_failure_probability if head is not None and carries_on else 0.0
    if policy.delta - (spent + terms.failure_probability) < SMALLEST_DELTA:
        return Refusal(HeldReason.BUDGET, "measuring the curvature once more would use up δ")
    try:
        lifetime = extend(policy, head, mechanism, terms)
    except ValueError:
        return Refusal(HeldReason.BUDGET, "after one more release no ε could be stated at this δ")
    return _over_cap(lifetime) or lifetime


def _over_cap(lifetime: Lifetime) -> Refusal | None:
    if lifetime.cap is None or lifetime.epsilon_total is None or lifetime.epsilon_total <= lifetime.cap:
        return None
    return Refusal(
        HeldReason.BUDGET,
        f"one more release would bring ε to {lifetime.epsilon_total:.4g}, past the cap of {lifetime.cap:.4g}",
    )


def sums_floating_point_noise(context: JobContext, mechanism: Mechanism) -> bool:
    """Return whether the running sum of the next release includes one of certificate format 1."""
    previous = previous_predicate(context)
    if previous is None or mechanism == "retrain":
        return False
    return previous.format_version == 1 or any(
        name == "floating-point-noise" for name, _ in previous.guarantee.assumption_texts
    )
