"""The privacy loss of a model over its lifetime: a running sum over its releases that a retrain resets.

Each release has a preset shift s = Δ*/σ. Shifts compose to √(Σ s²), and failure probabilities add up inside
δ. A discarded draw counts as a release. A retrain depends on the retained data alone, so it adds nothing and
starts a new sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from lethe.certificate.predicate import Assurance, Lifetime, Mechanism
from lethe.certificate.predicate_v1 import LifetimeV1
from lethe.certificate.privacy import compose, epsilon_for
from lethe.certificate.statement import AnyPredicate, AnyStatement

# From the strongest to the weakest.
_STRENGTH: tuple[Assurance, ...] = ("proved", "conditional", "as-published", "heuristic")


@dataclass(frozen=True)
class Link:
    """One certificate of a chain: its statement and the digest by which its successor names it."""

    digest: str
    statement: AnyStatement

    @property
    def predicate(self) -> AnyPredicate:
        """The predicate of the certificate."""
        return self.statement.predicate

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that made the release."""
        return self.predicate.mechanism

    @property
    def release_shift(self) -> float:
        """The shift s = Δ*/σ, recomputed."""
        return release_shift(self.predicate)

    @property
    def assurance(self) -> Assurance:
        """The assurance of this release alone."""
        return self.predicate.guarantee.assurance

    @property
    def residual(self) -> float:
        """The residual of the noise, charged to δ. A retrain is its own reference, so its residual is 0."""
        return 0.0 if self.predicate.bound.rule == "retrain" else self.predicate.noise.residual


@dataclass(frozen=True)
class RunningSum:
    """The composed privacy loss of several releases."""

    shift: float
    failure_probability: float
    residual: float
    assurance: Assurance


def release_shift(predicate: AnyPredicate) -> float:
    """Recompute the shift s = Δ*/σ from the stated bound and noise."""
    return predicate.bound.distance_target / predicate.noise.sigma


def since_last_retrain(links: Sequence[Link]) -> Sequence[Link]:
    """Return the links that count in the running sum of the last one."""
    resets = [place for place, link in enumerate(links) if link.mechanism == "retrain"]
    return links[resets[-1] :] if resets else links


def sum_of(links: Sequence[Link]) -> RunningSum:
    """Compose the privacy loss of these releases. A retrain in between does not cancel earlier releases.

    Certificates of version 1 used floating-point noise, so a newer certificate's sum over them is conditional
    at best.
    """
    levels = [link.assurance for link in links]
    if sums_floating_point_noise(links):
        levels.append("conditional")
    return RunningSum(
        compose(link.release_shift for link in links),
        math.fsum(link.predicate.bound.failure_probability for link in links),
        math.fsum(link.residual for link in links),
        weakest(levels),
    )


def sums_floating_point_noise(links: Sequence[Link]) -> bool:
    """Return whether the last link is of version 2 and its sum includes a link of version 1."""
    versions = [link.predicate.format_version for link in links]
    return bool(versions) and versions[-1] > 1 and 1 in versions


def running_sum(links: Sequence[Link]) -> RunningSum:
    """Compose the privacy loss of `links` since the last retrain."""
    return sum_of(since_last_retrain(links))


def weakest(assurances: Iterable[Assurance]) -> Assurance:
    """Return the weakest of these assurances, or "proved" if there are none."""
    return max(assurances, key=_STRENGTH.index, default="proved")


class RunningTotals:
    """Adds up the releases of a chain one by one, as the issuer did. A published retrain starts a new sum."""

    def __init__(self) -> None:
        self._running = RunningSum(0.0, 0.0, 0.0, "proved")
        self._formats: set[int] = set()

    def add(self, link: Link) -> RunningSum:
        """Add one release and return the sum up to and including it."""
        if link.mechanism == "retrain":
            self._running, self._formats = RunningSum(0.0, 0.0, 0.0, "proved"), set()
        before, predicate = self._running, link.predicate
        self._formats.add(predicate.format_version)
        levels: list[Assurance] = [before.assurance, link.assurance]
        if self.sums_floating_point_noise(link):
            levels.append("conditional")
        self._running = RunningSum(
            compose([before.shift, link.release_shift]),
            before.failure_probability + predicate.bound.failure_probability,
            before.residual + link.residual,
            weakest(levels),
        )
        return self._running

    def sums_floating_point_noise(self, link: Link) -> bool:
        """Return whether `link`, the last one added, is of version 2 and the sum includes version 1."""
        return link.predicate.format_version > 1 and 1 in self._formats


def date_after(previous: datetime | None, now: datetime) -> datetime:
    """Return the date of the next certificate of a chain: `now`, or the previous date if that is later.

    The clocks of two machines may differ by seconds, but dates along a chain must not go backwards.
    """
    return now if previous is None else max(previous, now)


def total_epsilon(running: RunningSum, *, delta: float) -> float | None:
    """Return ε of the running sum at δ, or None if the sum includes a heuristic release.

    The failure probability and the residual are first subtracted from δ.
    """
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
    """Return the lifetime after one more release. Compare its `epsilon_total` with the cap before drawing."""
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
