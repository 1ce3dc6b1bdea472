"""The timings of the demo: unlearning beside retraining with the same solver and with scikit-learn.

The digits of the demo are too few for a timing to mean something. So each image is joined by slightly turned,
scaled and shifted copies, as people do to train better models, and an erased person takes all copies along.
Everything runs on one core.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from bench.demo_data import Digits, Floats, Rows, distorted_copies, features
from worker.engine.bounds import strongly_convex_distance
from worker.engine.families import Softmax
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Solution, minimise, train

COPIES = 32
LAMBDA = 1e-5
TARGET = 1e-2
_REPEATS = 3
_CLASSES = 10
Result = TypeVar("Result")


@dataclass(frozen=True)
class Way:
    """One way to get a model without the erased people: its cost, and the certified distance it reaches."""

    name: str
    seconds: float
    passes: float | None
    distance: float


@dataclass(frozen=True)
class Timing:
    """The ways to erase a few people, and to erase a large group."""

    rows: int
    few_people: int
    few_rows: int
    few: tuple[Way, ...]
    group_people: int
    group_rows: int
    group: tuple[Way, ...]


def measure(data: Digits) -> Timing:
    """Time the erasure of the first writers, and separately of the group, from a larger table."""
    with threadpool_limits(1):
        return _measure(data)


def _measure(data: Digits) -> Timing:
    rows = distorted_copies(data.train, COPIES)
    inputs = features(rows.images)
    start = train(_objective(rows, inputs), target=TARGET)
    return Timing(
        rows=len(rows.labels),
        few_people=len(data.first),
        few_rows=int(rows.of(data.first).sum()),
        few=(*_both(rows, inputs, data.first, start), _with_sklearn(rows, inputs, data.first)),
        group_people=len(data.group),
        group_rows=int(rows.of(data.group).sum()),
        group=_both(rows, inputs, data.group, start),
    )


def _both(rows: Rows, inputs: Floats, people: list[str], start: Solution) -> tuple[Way, Way]:
    """Time unlearning and retraining with our solver, in turns."""
    keep = ~rows.of(people)
    kept, kept_inputs = rows.at(keep), inputs[keep]
    unlearning, retraining = [], []
    for _ in range(_REPEATS):
        unlearning.append(_timed(lambda: minimise(_objective(kept, kept_inputs), start.w, target=TARGET)))
        retraining.append(_timed(lambda: train(_objective(kept, kept_inputs), target=TARGET)))
    return _way("Lethe unlearns", unlearning), _way("Lethe retrains", retraining)


def _way(name: str, runs: list[tuple[float, Solution]]) -> Way:
    seconds, solution = median(seconds for seconds, _ in runs), runs[0][1]
    return Way(name, seconds, solution.passes, _distance(solution.gradient_norm, solution.rounding))


def _with_sklearn(rows: Rows, inputs: Floats, people: list[str]) -> Way:
    """Time scikit-learn's LogisticRegression with its default tolerance on the same objective."""
    keep = ~rows.of(people)
    kept = rows.at(keep)
    # The objective penalises the bias too, so the bias is a constant feature here.
    joined = np.hstack([inputs[keep], np.ones((len(kept.labels), 1), np.float32)]).astype(np.float64)
    model = LogisticRegression(C=1 / (LAMBDA * len(joined)), fit_intercept=False, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        seconds, fitted = _timed(lambda: model.fit(joined, kept.labels))
    objective = _objective(kept, inputs[keep])
    weights = torch.from_numpy(np.ascontiguousarray(fitted.coef_))
    here = objective.certified_gradient(
        objective.flatten({"weight": weights[:, :-1].contiguous(), "bias": weights[:, -1].contiguous()})
    )
    return Way("scikit-learn retrains", seconds, None, _distance(here.norm, here.rounding))


def _objective(rows: Rows, inputs: Floats) -> Softmax:
    """Return a fresh objective, so that no run inherits the caches of another."""
    return Softmax(ArrayRows(inputs, rows.labels), _CLASSES, LAMBDA)


def _distance(norm: float, rounding: float) -> float:
    return strongly_convex_distance(gradient_norm=norm, rounding=rounding, floor=LAMBDA)


def _timed(run: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result
