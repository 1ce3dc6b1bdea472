"""How well a score separates members from others: AUC, TPR at a fixed FPR, and bootstrap intervals.

Weights count how often a row was resampled, so a single sort serves every bootstrap replicate.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_FALSE_POSITIVES = 5
"""A TPR at FPR α is reported only if α times the number of unseen rows is at least this."""

_BATCH_NUMBERS = 2_000_000  # weights per batch


FALSE_POSITIVE_RATES = (0.01, 0.001)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AttackResult:
    """AUC and TPR by FPR. A TPR is None if there are too few unseen rows to measure it."""

    auc: Estimate
    tpr: dict[float, Estimate | None]


class Ranking:
    """Scores of members and unseen rows, sorted once. Higher scores mean "member", and ties count half."""

    def __init__(self, members: Floats, unseen: Floats) -> None:
        if len(members) == 0 or len(unseen) == 0:
            raise ValueError("both members and unseen rows are required")
        scores = np.concatenate([members, unseen])
        if not np.isfinite(scores).all():
            raise ValueError("scores must be finite")
        self._order = np.argsort(-scores, kind="stable")
        ordered = scores[self._order]
        self._starts = np.flatnonzero(np.diff(ordered, prepend=np.inf))  # of each run of equal scores
        self._members = self._order < len(members)

    def auc(self, weights: Floats) -> Floats:
        """Return P(member scores higher) + ½·P(tie) for each set of weights. (B, rows) -> (B,)"""
        gained, false = self._runs(weights)
        below = false.sum(1, keepdims=True) - false.cumsum(1)
        wins = (gained * (below + false / 2)).sum(1)
        return np.asarray(wins / (gained.sum(1) * false.sum(1)))

    def tpr(self, weights: Floats, fpr: float) -> Floats:
        """Return the largest TPR of a threshold whose FPR is at most `fpr`. (B, rows) -> (B,)"""
        gained, false = self._runs(weights)
        allowed = false.cumsum(1) <= fpr * false.sum(1, keepdims=True) * (1 + 1e-12)
        return np.asarray((gained * allowed).sum(1) / gained.sum(1))

    def figures(self, weights: Floats, rates: list[float]) -> Floats:
        """Return the AUC, then the TPR at each rate. (B, rows) -> (1 + rates, B)"""
        return np.stack([self.auc(weights), *(self.tpr(weights, rate) for rate in rates)])

    def _runs(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return the weight of members and of unseen rows in each run of equal scores, highest first."""
        ordered = weights[:, self._order]
        gained = np.add.reduceat(ordered * self._members, self._starts, axis=1)
        return gained, np.add.reduceat(ordered * ~self._members, self._starts, axis=1)


def auc(members: Floats, unseen: Floats) -> float:
    """Return the Mann–Whitney statistic divided by its maximum.

    >>> auc(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
    0.875
    """
    return float(Ranking(members, unseen).auc(np.ones((1, len(members) + len(unseen))))[0])


def tpr_at(members: Floats, unseen: Floats, fpr: float) -> float:
    """Return the share of members above a threshold that at most a share `fpr` of the unseen rows exceeds.

    >>> tpr_at(np.array([3.0, 1.0]), np.array([2.0, 0.0]), fpr=0.5)
    1.0
    """
    return float(Ranking(members, unseen).tpr(np.ones((1, len(members) + len(unseen))), fpr)[0])


def measurable(unseen: int) -> list[float]:
    """Return the false-positive rates that this many unseen rows can resolve."""
    return [rate for rate in FALSE_POSITIVE_RATES if rate * unseen >= LEAST_FALSE_POSITIVES]


def resamples(*groups: int, replicates: int, seed: int) -> Iterator[Floats]:
    """Yield bootstrap weights in batches (b, sum of groups), each group of rows resampled to its own size.

    The same seed gives the same weights, which pairs the intervals of two models.
    """
    rng = np.random.default_rng(seed)
    batch = max(1, _BATCH_NUMBERS // sum(groups))
    for start in range(0, replicates, batch):
        size = min(batch, replicates - start)
        yield np.concatenate([_counts(rng, size, rows) for rows in groups], axis=1)


def attack_result(whole: Floats, drawn: Floats, rates: list[float], confidence: float) -> AttackResult:
    """Build the result from `figures` of all rows (1 + rates,) and of the replicates (1 + rates, B)."""
    area, *rates_at = (interval(float(v), d, confidence) for v, d in zip(whole, drawn, strict=True))
    unknown: dict[float, Estimate | None] = dict.fromkeys(FALSE_POSITIVE_RATES)
    return AttackResult(area, unknown | dict(zip(rates, rates_at, strict=True)))


def interval(value: float, replicates: Floats, confidence: float) -> Estimate:
    """Return the percentile interval."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def _counts(rng: np.random.Generator, size: int, rows: int) -> Floats:
    picks = rng.integers(0, rows, size=(size, rows)) + rows * np.arange(size)[:, None]
    return np.bincount(picks.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)
