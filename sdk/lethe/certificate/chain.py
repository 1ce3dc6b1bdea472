"""A model's lifetime: the running sum over its releases, which a retrain resets.

Each release has the preset shift s = Δ*/σ; releases compose to √(Σ s²), failure probabilities add up inside
δ. A discarded draw is a release. A retrain is a function of the retained data alone: it adds nothing, and
those erased from then on start a new sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from certificate.predicate import Assurance, Lifetime, Mechanism
from certificate.predicate_v1 import LifetimeV1
from certificate.privacy import compose, epsilon_for
from certificate.statement import AnyPredicate, AnyStatement

# From the strongest to the weakest.
_STRENGTH: tuple[Assurance, ...] = ("proved", "conditional", "as-published", "heuristic")


@dataclass(frozen=True)
class Link:
    """What a release contributes to the sum, and how it is tied to the one before."""

    digest: str
    statement: AnyStatement

    @property
    def predicate(self) -> AnyPredicate:
        """What the certificate says."""
        return self.statement.predicate

    @property
    def mechanism(self) -> Mechanism:
        """How the release was made."""
        return self.predicate.mechanism

    @property
    def release_shift(self) -> float:
        """s = Δ*/σ, recomputed."""
        return release_shift(self.predicate)

    @property
    def assurance(self) -> Assurance:
        """The release's own tier."""
        return self.predicate.guarantee.assurance

    @property
    def residual(self) -> float:
        """What the release's noise takes of δ; a retrain takes nothing, since it is its own reference."""
        return 0.0 if self.predicate.bound.rule == "retrain" else self.predicate.noise.residual


@dataclass(frozen=True)
class RunningSum:
    """What several releases spend together."""

    shift: float
    failure_probability: float
    residual: float
    assurance: Assurance


def release_shift(predicate: AnyPredicate) -> float:
    """Recompute s = Δ*/σ from what the certificate says of bound and noise."""
    return predicate.bound.distance_target / predicate.noise.sigma


def since_last_retrain(links: Sequence[Link]) -> Sequence[Link]:
    """The links whose releases count in the running sum of the last one."""
    resets = [place for place, link in enumerate(links) if link.mechanism == "retrain"]
    return links[resets[-1] :] if resets else links


def sum_of(links: Sequence[Link]) -> RunningSum:
    """Compose the privacy loss of these releases. A retrain in between does not cancel earlier releases.

    Certificates of version 1 used floating-point noise: a sum that a newer one states over them is
    conditional at best.
    """
    tiers = [link.assurance for link in links]
    if sums_floating_point_noise(links):
        tiers.append("conditional")
    return RunningSum(
        compose(link.release_shift for link in links),
        math.fsum(link.predicate.bound.failure_probability for link in links),
        math.fsum(link.residual for link in links),
        weakest(tiers),
    )


def sums_floating_point_noise(links: Sequence[Link]) -> bool:
    """Whether a certificate of version 2 ends a sum that includes one of version 1."""
    versions = [link.predicate.format_version for link in links]
    return bool(versions) and versions[-1] > 1 and 1 in versions


def running_sum(links: Sequence[Link]) -> RunningSum:
    """Compose the privacy loss of `links` from the last retrain on."""
    return sum_of(since_last_retrain(links))


def weakest(assurances: Iterable[Assurance]) -> Assurance:
    """Return the weakest of these tiers."""
    return max(assurances, key=_STRENGTH.index, default="proved")


class RunningTotals:
    """Adds up a chain's releases one by one, as its issuer did; a published retrain starts a new sum."""

    def __init__(self) -> None:
        self._running = RunningSum(0.0, 0.0, 0.0, "proved")
        self._formats: set[int] = set()

    def add(self, link: Link) -> RunningSum:
        """Count one more release, and return what has been spent up to and including it."""
        if link.mechanism == "retrain":
            self._running, self._formats = RunningSum(0.0, 0.0, 0.0, "proved"), set()
        before, predicate = self._running, link.predicate
        self._formats.add(predicate.format_version)
        tiers: list[Assurance] = [before.assurance, link.assurance]
        if self.sums_floating_point_noise(link):
            tiers.append("conditional")
        self._running = RunningSum(
            compose([before.shift, link.release_shift]),
            before.failure_probability + predicate.bound.failure_probability,
            before.residual + link.residual,
            weakest(tiers),
        )
        return self._running

    def sums_floating_point_noise(self, link: Link) -> bool:
        """Whether `link`, the last one added, is of version 2 and one of version 1 is in the sum."""
        return link.predicate.format_version > 1 and 1 in self._formats


def date_after(previous: datetime | None, now: datetime) -> datetime:
    """Return the date for the next certificate of a chain: now, and never before the previous one's.

    Two machines' clocks may differ by seconds; dates along a chain must not run backwards.
    """
    return now if previous is None else max(previous, now)


def total_epsilon(running: RunningSum, *, delta: float) -> float | None:
    """Return ε of the running sum at δ, of which p and the residual take their part; None when heuristic."""
    if running.assurance == "heuristic":
        return None
    if running.shift == 0 and running.failure_probability == 0:
        return 0.0
    return epsilon_for(
        delta=delta,
        shift=running.shift,
        failure_probability=running.failure_probability,
        residual=running.residual,
    )


def extend_lifetime(
    previous: Lifetime | LifetimeV1 | None,
    previous_digest: str | None,
    *,
    mechanism: Mechanism,
    shift: float,
    failure_probability: float,
    residual: float,
    assurance: Assurance,
    delta: float,
    cap: float | None,
) -> Lifetime:
    """Return the lifetime of the next release. Compare `epsilon_total` with the cap before drawing noise."""
    running = RunningSum(shift, failure_probability, residual, assurance)
    if previous is not None and mechanism != "retrain":
        floor: Assurance = "conditional" if isinstance(previous, LifetimeV1) else "proved"
        running = RunningSum(
            compose([previous.running_shift, shift]),
            previous.running_failure_probability + failure_probability,
            previous.running_residual + residual,
            weakest([previous.assurance, floor, assurance]),
        )
    return Lifetime(
        release_shift=shift,
        running_shift=running.shift,
        running_failure_probability=running.failure_probability,
        running_residual=running.residual,
        epsilon_total=total_epsilon(running, delta=delta),
        delta=delta,
        cap=cap,
        assurance=running.assurance,
        index=0 if previous is None else previous.index + 1,
        previous_certificate_digest=previous_digest,
    )
