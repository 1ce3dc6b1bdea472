"""Utility of a model on holdout rows: micro-F1 and loss for classifiers, RMSE and R² for regression.

Rows are read in chunks, in float64. Losses are means without the (λ/2)‖w - a‖² of the objective.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.networks.objective import NetworkObjective


@runtime_checkable
class Holdout(Protocol):
    """Rows to score on, with the family's predictor and loss.

    Every built-in convex objective satisfies it.
    """

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows in float64: (c, width), (c,)."""
        ...

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the model. (d,), (c, width) -> (outputs, c)"""
        ...

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and its derivative in z. May overwrite z."""
        ...

    def check_targets(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless the targets of the chunk that starts at row `first` are valid."""
        ...


class NetworkHoldout:
    """A network's rows, predictor and loss in the class-major form of `Holdout`, linearised or not."""

    def __init__(self, objective: NetworkObjective | LinearisedObjective) -> None:
        self._objective = objective

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows in float64: (c, width), (c,)."""
        return self._objective.chunks()

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the network. (d,), (c, width) -> (outputs, c)"""
        return self._objective.logits(w, x).detach().T

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and its derivative in z. (outputs, c), (c,) -> (), (outputs, c)"""
        residual = self._objective.loss.residual(z.T, y)
        return residual.loss, residual.q.T

    def check_targets(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless the targets of the chunk that starts at row `first` are valid."""
        self._objective.loss.check(y, first)


def holdout_of(objective: object) -> Holdout | None:
    """Return the objective's rows as a holdout, or None for a plug-in that cannot be scored."""
    if isinstance(objective, NetworkObjective | LinearisedObjective):
        return NetworkHoldout(objective)
    return objective if isinstance(objective, Holdout) else None


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Confusion counts of one class against the rest."""

    true_positives: int
    false_positives: int
    false_negatives: int

    @property
    def f1(self) -> float | None:
        """F1 of the class, or None if it neither occurs nor is predicted."""
        return _f1(self.true_positives, self.false_positives, self.false_negatives)


@dataclass(frozen=True, slots=True)
class Classification:
    """Scores of a classifier."""

    rows: int
    loss: float
    micro_f1: float
    classes: tuple[ClassCounts, ...]


@dataclass(frozen=True, slots=True)
class Regression:
    """Scores of a regression model."""

    rows: int
    loss: float
    rmse: float
    r_squared: float | None  # None if the targets do not vary


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two classifiers on the same rows. Differences are 100·(F1(retrained) - F1(unlearned)), in points."""

    retrained: Classification
    unlearned: Classification
    delta_f1: float
    low: float
    high: float
    confidence: float


def classification(holdout: Holdout, w: Tensor) -> Classification:
    """Return micro-F1 and mean loss.

    A single output is the logit of class 1; several are one logit per class.
    """
    return _scored(holdout, (w,))[0][0]


def compare(
    holdout: Holdout, *, retrained: Tensor, unlearned: Tensor, confidence: float = 0.95
) -> Comparison:
    """Return ΔF1 with a paired interval, from one pass over the holdout.

    Both models see the same rows, so only rows on which exactly one of them is right carry information. The
    interval is Wald's with half a row added to each cell (Agresti & Min 2005). It refers to the population
    that the holdout samples, and is not widened for the randomness of the release noise.
    """
    (better, worse), (first, second) = _scored(holdout, (retrained, unlearned))
    n = better.rows + 2
    first_only, second_only = first + 0.5, second + 0.5
    centre = (first_only - second_only) / n
    spread = math.sqrt((first_only + second_only) / n - centre**2) / math.sqrt(n)
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * spread
    return Comparison(
        retrained=better,
        unlearned=worse,
        delta_f1=delta_f1(retrained=better, unlearned=worse),
        low=100 * (centre - reach),
        high=100 * (centre + reach),
        confidence=confidence,
    )


def delta_f1(*, retrained: Classification, unlearned: Classification) -> float:
    """Return the signed ΔF1 in points, positive if retraining would have been better."""
    return 100 * (retrained.micro_f1 - unlearned.micro_f1)


def regression(holdout: Holdout, w: Tensor) -> Regression:
    """Return RMSE, R² = 1 - Σ(y - ŷ)²/Σ(y - ȳ)², and the mean of ½(y - ŷ)²."""
    squares, rows, mean, scatter = 0.0, 0, 0.0, 0.0
    for x, y in holdout.chunks():
        holdout.check_targets(y, rows)
        targets = y.to(x.dtype)
        error = _finite(holdout.logits(w, x))[0] - targets
        squares += float(error @ error)
        # Chan, Golub & LeVeque 1979: Σ(y - ȳ)² over chunks without cancellation.
        offset = float(targets.mean()) - mean
        scatter += float((targets - targets.mean()).square().sum())
        scatter += offset**2 * rows * len(y) / (rows + len(y))
        rows += len(y)
        mean += offset * len(y) / rows
    _require_rows(rows)
    return Regression(
        rows=rows,
        loss=squares / (2 * rows),
        rmse=math.sqrt(squares / rows),
        r_squared=1 - squares / scatter if scatter > 0 else None,
    )


def micro_f1(classes: tuple[ClassCounts, ...]) -> float:
    """Return 2·TP/(2·TP + FP + FN) of the summed counts.

    With one label and one prediction per row, every miss is one FP and one FN, so this is the accuracy.

    >>> micro_f1((ClassCounts(3, 1, 0), ClassCounts(1, 0, 1)))
    0.8
    """
    sums = [sum(getattr(c, name) for c in classes) for name in ClassCounts.__slots__]
    value = _f1(*sums)
    if value is None:
        raise ValueError("no rows to score on")
    return value


def _f1(true_positives: int, false_positives: int, false_negatives: int) -> float | None:
    total = 2 * true_positives + false_positives + false_negatives
    return 2 * true_positives / total if total else None


def _scored(
    holdout: Holdout, models: tuple[Tensor, ...]
) -> tuple[tuple[Classification, ...], tuple[int, int]]:
    """Return each model's scores, and how often only the first and only the last of them was right."""
    tallies = tuple(_Tally() for _ in models)
    rows, first_only, last_only = 0, 0, 0
    for x, y in holdout.chunks():
        holdout.check_targets(y, rows)
        right = [tally.add(holdout, w, x, y) for tally, w in zip(tallies, models, strict=True)]
        first_only += int((right[0] & ~right[-1]).sum())
        last_only += int((right[-1] & ~right[0]).sum())
        rows += len(y)
    _require_rows(rows)
    return tuple(tally.result(rows) for tally in tallies), (first_only, last_only)


class _Tally:
    """Counts of one model, accumulated chunk by chunk."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.counts: Tensor | None = None  # (3, classes): TP, FP, FN

    def add(self, holdout: Holdout, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Add a chunk and return which of its rows are right, (c,)."""
        z = _finite(holdout.logits(w, x))
        predicted, actual = _predictions(z), y.long()
        classes = max(2, z.shape[0])
        right = predicted == actual
        counts = torch.stack(
            [
                torch.bincount(actual[right], minlength=classes),
                torch.bincount(predicted[~right], minlength=classes),
                torch.bincount(actual[~right], minlength=classes),
            ]
        )
        self.counts = counts if self.counts is None else self.counts + counts
        self.loss += float(holdout.residual(z, y)[0])
        return right

    def result(self, rows: int) -> Classification:
        """Return the scores over `rows` rows."""
        assert self.counts is not None
        classes = tuple(ClassCounts(*column) for column in self.counts.T.tolist())
        return Classification(rows, self.loss / rows, micro_f1(classes), classes)


def _predictions(z: Tensor) -> Tensor:  # (outputs, c) -> (c,)
    return (z[0] > 0).long() if z.shape[0] == 1 else z.argmax(0)


def _finite(z: Tensor) -> Tensor:
    if not bool(torch.isfinite(z).all()):
        raise ValueError("the model's outputs are not finite")
    return z


def _require_rows(rows: int) -> None:
    if rows == 0:
        raise ValueError("no rows to score on")
