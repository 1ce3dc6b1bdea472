"""A model's lifetime: the running sum over its releases, which a retrain resets.

Each release has the preset shift s = Δ*/σ; releases compose to √(Σ s²), failure probabilities add up inside
δ. A discarded draw is a release. A retrain is a function of the retained data alone: it adds nothing, and
those erased from then on start a new sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from certificate.pack import LinkSummary
from certificate.predicate import Assurance, Lifetime, Mechanism, Predicate
from certificate.privacy import compose, epsilon_for
from certificate.statement import Statement

# From the strongest to the weakest.
_STRENGTH: tuple[Assurance, ...] = ("proved", "conditional", "as-published", "heuristic")


@dataclass(frozen=True)
class Link:
    """What a release contributes to the sum, and how it is tied to the one before."""

    digest: str
    model_id: str
    mechanism: Mechanism
    release_shift: float
    failure_probability: float
    assurance: Assurance
    index: int
    previous_digest: str | None
    checkpoint_sha256: str | None = None
    version: int | None = None

    @classmethod
    def of_statement(cls, statement: Statement, digest: str) -> Link:
        predicate = statement.predicate
        return cls(
            digest=digest,
            model_id=predicate.model_id,
            mechanism=predicate.mechanism,
            release_shift=release_shift(predicate),
            failure_probability=predicate.bound.failure_probability,
            assurance=predicate.guarantee.assurance,
            index=predicate.lifetime.index,
            previous_digest=predicate.lifetime.previous_certificate_digest,
            checkpoint_sha256=statement.checkpoint_sha256,
            version=predicate.version,
        )

    @classmethod
    def of_summary(cls, summary: LinkSummary) -> Link:
        lifetime = summary.lifetime
        return cls(
            digest=summary.digest,
            model_id=summary.model_id,
            mechanism=summary.mechanism,
            release_shift=lifetime.release_shift,
            failure_probability=summary.failure_probability,
            assurance=lifetime.assurance,
            index=lifetime.index,
            previous_digest=lifetime.previous_certificate_digest,
        )


@dataclass(frozen=True)
class RunningSum:
    shift: float
    failure_probability: float
    assurance: Assurance


def release_shift(predicate: Predicate) -> float:
    """s = Δ*/σ, recomputed from what the certificate says of bound and noise."""
    return predicate.bound.distance_target / predicate.noise.sigma


def since_last_retrain(links: Sequence[Link]) -> Sequence[Link]:
    """The links whose releases count in the running sum of the last one."""
    resets = [place for place, link in enumerate(links) if link.mechanism == "retrain"]
    return links[resets[-1] :] if resets else links


def running_sum(links: Sequence[Link]) -> RunningSum:
    """The sum over `links`, from the last retrain on."""
    counted = since_last_retrain(links)
    return RunningSum(
        compose(link.release_shift for link in counted),
        sum(link.failure_probability for link in counted),
        weakest(link.assurance for link in counted),
    )


def weakest(assurances: Iterable[Assurance]) -> Assurance:
    return max(assurances, key=_STRENGTH.index, default="proved")


def total_epsilon(running: RunningSum, *, delta: float) -> float | None:
    """ε of the running sum at δ, of which the failure probabilities take their part; None when heuristic."""
    if running.assurance == "heuristic":
        return None
    if running.shift == 0 and running.failure_probability == 0:
        return 0.0
    return epsilon_for(delta=delta - running.failure_probability, shift=running.shift)


def extend_lifetime(
    previous: Lifetime | None,
    previous_digest: str | None,
    *,
    mechanism: Mechanism,
    shift: float,
    failure_probability: float,
    assurance: Assurance,
    delta: float,
    cap: float | None,
) -> Lifetime:
    """The lifetime of the next release. Compare its `epsilon_total` with the cap before drawing any noise."""
    running = RunningSum(shift, failure_probability, assurance)
    if previous is not None and mechanism != "retrain":
        running = RunningSum(
            compose([previous.running_shift, shift]),
            previous.running_failure_probability + failure_probability,
            weakest([previous.assurance, assurance]),
        )
    return Lifetime(
        release_shift=shift,
        running_shift=running.shift,
        running_failure_probability=running.failure_probability,
        epsilon_total=total_epsilon(running, delta=delta),
        delta=delta,
        cap=cap,
        assurance=running.assurance,
        index=0 if previous is None else previous.index + 1,
        previous_certificate_digest=previous_digest,
    )
