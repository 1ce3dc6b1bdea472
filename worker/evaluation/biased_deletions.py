"""Biased deletions for experiments: rows drawn without replacement, by class weight.

The draw is successive sampling: the next row is chosen among those left with probability proportional to the
weight b_c of its class. Adding a Gumbel variate to each log b_c and sorting gives exactly that distribution
(Efraimidis & Spirakis 2006, in logarithms). A smaller deletion with the same seed is a prefix of a larger
one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from worker.evaluation.class_drift import ClassDrift, measure_class_drift

PAPER_WEIGHTS: Mapping[int, float] = MappingProxyType({0: 99.0, 7: 99.0})
"""The paper's coefficients b_c. Every other class has weight 1."""

Direction = Literal["retained_original", "original_retained"]
"""KL(P_R‖P_D), always finite, or KL(P_D‖P_R), which is infinite once a class has vanished."""


@dataclass(frozen=True)
class Deletion:
    """A deletion set F and the class drift it causes."""

    rows: NDArray[np.int64]  # (m,), ascending
    drift: ClassDrift


@dataclass(frozen=True)
class _Order:
    """All rows that can be drawn, in drawing order. A deletion is `rows[: ends[k]]` for some k."""

    rows: NDArray[np.int64]
    ends: NDArray[np.int64]


def biased_deletion(
    labels: NDArray[np.integer[Any]],
    count: int,
    *,
    weights: Mapping[int, float] = PAPER_WEIGHTS,
    seed: int,
    subjects: NDArray[Any] | None = None,
) -> Deletion:
    """Draw `count` rows with class weights b_c, or whole subjects until there are at least `count` rows.

    With `subjects`, a drawn row takes along every row of its subject, as an erasure request would. The
    probability of a subject is then proportional to the total weight of its rows.
    """
    order = _draw(labels, weights, seed, subjects)
    if not 0 <= count <= len(order.rows):
        raise ValueError(f"{count} rows requested, but only {len(order.rows)} can be drawn")
    end = 0 if count == 0 else int(order.ends[np.searchsorted(order.ends, count)])
    return _deletion(labels, order.rows[:end])


def deletion_reaching(
    labels: NDArray[np.integer[Any]],
    divergence: float,
    *,
    weights: Mapping[int, float] = PAPER_WEIGHTS,
    seed: int,
    subjects: NDArray[Any] | None = None,
    direction: Direction = "retained_original",
) -> Deletion:
    """Return the smallest biased deletion that comes closest to the given KL.

    KL is computed at every size rather than assumed to rise, because it stops rising once the heavy classes
    run out.
    """
    if not divergence >= 0:
        raise ValueError(f"a divergence is not negative, got {divergence}")
    order = _draw(labels, weights, seed, subjects)
    curve = _divergences(labels, order.rows, direction)
    sizes = np.concatenate([[0], order.ends])
    sizes = sizes[sizes < len(labels)]  # at least one row must be retained
    reached = np.flatnonzero(curve[sizes] >= divergence)
    if len(reached) == 0:
        most = float(curve[sizes].max())
        raise ValueError(f"no deletion reaches KL {divergence:.4g}; the largest is {most:.4g}")
    place = int(reached[0])
    if place > 0 and divergence - curve[sizes[place - 1]] < curve[sizes[place]] - divergence:
        place -= 1
    return _deletion(labels, order.rows[: sizes[place]])


def _draw(
    labels: NDArray[np.integer[Any]],
    weights: Mapping[int, float],
    seed: int,
    subjects: NDArray[Any] | None,
) -> _Order:
    if any(not (np.isfinite(weight) and weight >= 0) for weight in weights.values()):
        raise ValueError("class weights must be finite and not negative")
    mass = np.ones(len(labels))
    for label, weight in weights.items():
        mass[labels == label] = weight
    gumbel = np.random.default_rng(seed).gumbel(size=len(labels))
    with np.errstate(divide="ignore"):
        keys = np.log(mass) + gumbel  # weight 0: never drawn
    drawn = np.argsort(-keys, kind="stable")[: int(np.count_nonzero(mass))]
    if subjects is None:
        return _Order(drawn, np.arange(1, len(drawn) + 1))
    return _whole_subjects(drawn, subjects)


def _whole_subjects(drawn: NDArray[np.int64], subjects: NDArray[Any]) -> _Order:
    """Order subjects by their first drawn row, each with all its rows.

    This includes rows that alone could not be drawn.
    """
    _, codes = np.unique(subjects, return_inverse=True)
    first = np.full(int(codes.max(initial=-1)) + 1, len(codes))
    np.minimum.at(first, codes[drawn], np.arange(len(drawn)))
    place = first[codes]
    chosen = np.flatnonzero(place < len(codes))
    rows = chosen[np.argsort(place[chosen], kind="stable")]
    return _Order(rows, np.append(np.flatnonzero(np.diff(place[rows])) + 1, len(rows)))


def _divergences(
    labels: NDArray[np.integer[Any]], order: NDArray[np.int64], direction: Direction
) -> NDArray[np.float64]:
    """Return KL after erasing the first k rows of `order`, for every k. -> (len(order) + 1,)

    With r_c rows of class c left, r in all, and p_c the original share, KL(R‖D) = Σ r_c·ln(r_c/p_c)/r - ln r
    and KL(D‖R) = Σ p_c·ln(p_c/r_c) + ln r. Each erased row changes one term of the sum.
    """
    total = len(labels)
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    share = counts / total
    erased = codes[order]
    before = counts[erased] - _rank_within(erased)
    p = share[erased]
    left = total - np.arange(len(order) + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if direction == "retained_original":
            after = before - 1
            change = np.where(after > 0, after * np.log(after / p), 0.0) - before * np.log(before / p)
            terms = np.concatenate([[np.sum(counts * np.log(counts / share))], change]).cumsum()
            return np.asarray(np.maximum(terms / left - np.log(left), 0.0))
        change = p * np.log(before / (before - 1))  # infinite from the row on with which a class vanishes
        terms = np.concatenate([[np.sum(share * np.log(share / counts))], change]).cumsum()
        return np.asarray(np.maximum(terms + np.log(left), 0.0))


def _rank_within(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many earlier entries are equal. (k,) -> (k,)"""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(starts, append=len(codes))
    ranks = np.empty(len(codes), dtype=np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return ranks


def _deletion(labels: NDArray[np.integer[Any]], rows: NDArray[np.int64]) -> Deletion:
    return Deletion(np.sort(rows), measure_class_drift(_histogram(labels), _histogram(labels[rows])))


def _histogram(labels: NDArray[np.integer[Any]]) -> dict[str, int]:
    names, counts = np.unique(labels, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}
