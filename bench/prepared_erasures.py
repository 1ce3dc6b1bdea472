"""Erasures that find a curvature sketch, against retraining and against scikit-learn.

Each problem is solved to a certified Δ ≤ Δ*. The start is the published version: the trained weights with the
noise of ε = 1 and δ = 1e-5. For MNIST the version as registered, without noise, is measured as well, because
the first erasure starts from it. The runs of one repetition follow each other, and medians are reported. The
sketch is prepared before the clock starts, as an idle worker would; its seconds and bytes are reported.

    python -m bench.prepared_erasures before

measures unlearning without a sketch and retraining alone, and writes results/engine_before.json. Run it in a
checkout of an earlier commit, with this file and `bench/image_features.py` copied there, to compare absolute
seconds with those of that commit.
"""

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.datasets import mnist
from bench.image_features import cifar_features
from bench.measurement import RESULTS, full, machine, median, timed
from lethe.certificate.privacy import sigma_for
from worker.engine.families import Softmax
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Outcome, Solution, minimise, train

LAMBDA, CLASSES, EPSILON, DELTA, SEED, REPEATS = 1e-4, 10, 1.0, 1e-5, 20, 5
BEFORE = RESULTS / "engine_before.json"
_PIXEL_SCALE = 17.25  # No row of pixels in [0, 1] with its constant feature is longer.


@dataclass(frozen=True, slots=True)
class Erasure:
    """One problem: its rows, how many of them are erased, the target, and the bars against retraining."""

    name: str
    rows: Callable[[], tuple[NDArray[np.float32], NDArray[np.int64]]]
    erased: int
    target: float
    noised: bool
    bar: float | None  # how many times faster than retraining; None: reported without one
    sklearn: bool = True  # whether scikit-learn solves it too, which takes minutes


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    raw = mnist()
    pixels = raw.train_images.astype(np.float32) / np.float32(255)
    rows = np.hstack([pixels, np.ones((len(pixels), 1), np.float32)]) / np.float32(_PIXEL_SCALE)
    return rows.astype(np.float32, copy=False), raw.train_labels.astype(np.int64)


def _images(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the features of the first images with a constant feature, so that λ acts on the bias too."""
    features, labels = cifar_features(count)
    return np.hstack([features, np.ones((count, 1), np.float32)]), labels


ERASURES = (
    Erasure("10 of 10,000 images", lambda: _images(10_000), 10, 1e-3, noised=True, bar=4),
    Erasure("50 of 20,000 images", lambda: _images(20_000), 50, 1e-3, noised=True, bar=5),
    Erasure("50 of 50,000 images", lambda: _images(50_000), 50, 1e-3, noised=True, bar=None, sklearn=False),
    Erasure("60 of 60,000 digits, as registered", _digits, 60, 1e-2, noised=False, bar=3),
    Erasure("60 of 60,000 digits, published", _digits, 60, 1e-2, noised=True, bar=3, sklearn=False),
)


@dataclass(frozen=True, slots=True)
class _Setting:
    """An erasure that is about to be solved."""

    before: Softmax
    features: NDArray[np.float32]  # of the retained rows
    labels: NDArray[np.int64]
    start: Tensor  # (d,)

    def retained(self) -> Softmax:
        """Return a fresh objective on the retained rows, so that no run inherits what another measured."""
        return _objective(self.features, self.labels)


def measure() -> dict[str, Any]:
    """Measure every problem and return its figures by name."""
    earlier = json.loads(BEFORE.read_text()) if BEFORE.exists() else None
    report: dict[str, Any] = {"erasures": {erasure.name: _measure(erasure) for erasure in ERASURES}}
    if earlier is not None:
        report["before"] = {"machine": earlier["machine"], "erasures": earlier["erasures"]}
    return report


def bars(report: dict[str, Any]) -> dict[str, tuple[float, str, float]]:
    """Return what was measured against each target: (value, sign, target) by name."""
    found: dict[str, tuple[float, str, float]] = {}
    for erasure in ERASURES:
        figures = report["erasures"][erasure.name]
        if erasure.bar is None:
            continue
        found[f"{erasure.name}: times faster than our retraining"] = (
            figures["retrain"]["seconds"] / figures["unlearn"]["seconds"],
            ">=",
            erasure.bar,
        )
        if erasure.sklearn:
            found[f"{erasure.name}: times faster than scikit-learn"] = (
                figures["sklearn"]["seconds"] / figures["unlearn"]["seconds"],
                ">=",
                20,
            )
    return found


def _objective(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Softmax:
    return Softmax(ArrayRows(features, labels), CLASSES, LAMBDA, bias=False)


def _set_up(erasure: Erasure) -> _Setting:
    features, labels = erasure.rows()
    before = _objective(features, labels)
    start = train(before, target=erasure.target).w
    if erasure.noised:
        sigma = sigma_for(epsilon=EPSILON, delta=DELTA, distance=erasure.target)
        generator = torch.Generator().manual_seed(SEED)
        start = start + sigma * torch.randn(len(start), generator=generator, dtype=torch.float64)
    kept = np.ones(len(labels), dtype=bool)
    kept[np.random.default_rng(SEED).choice(len(labels), erasure.erased, replace=False)] = False
    return _Setting(before, features[kept], labels[kept], start)


def _measure(erasure: Erasure) -> dict[str, Any]:
    from worker.engine.sketch import build_sketch
    from worker.sketches import MOST_DIRECTIONS

    setting = _set_up(erasure)
    rows, dimension = setting.before.rows, setting.before.dimension
    rank = min(MOST_DIRECTIONS, rows.count * rows.width // (4 * dimension))
    preparing, sketch = timed(lambda: build_sketch(setting.before, setting.start, rank=rank))
    assert sketch is not None
    runs = {
        "unlearn": lambda: minimise(setting.retained(), setting.start, target=erasure.target, sketch=sketch),
        "without_sketch": lambda: minimise(setting.retained(), setting.start, target=erasure.target),
        "retrain": lambda: train(setting.retained(), target=erasure.target),
    }
    figures: dict[str, Any] = _medians(runs)
    figures["preparation"] = {
        "seconds": preparing,
        "directions": len(sketch.values),
        "bytes": sketch.basis.nbytes + sketch.values.nbytes,
        "bytes_of_rows": setting.features.nbytes,
    }
    if erasure.sklearn:  # the others have the same rows, or more of them
        figures["sklearn"] = _sklearn(setting, LAMBDA * erasure.target)
    return figures


def _medians(runs: dict[str, Callable[[], Solution]]) -> dict[str, Any]:
    """Run everything REPEATS times, interleaved, and return medians. Every run must certify."""
    repeats = 7 if full() else REPEATS
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    passes: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            spent, solution = timed(run)
            if solution.outcome is not Outcome.CERTIFIED:
                raise RuntimeError(f"{name}: {solution.outcome}")
            seconds[name].append(spent)
            passes[name].append(solution.passes)
    return {
        name: {
            "seconds": median(seconds[name]),
            "passes": median(passes[name]),
            "all_seconds": seconds[name],
        }
        for name in runs
    }


def _sklearn(setting: _Setting, goal: float) -> dict[str, Any]:
    """Time scikit-learn's LogisticRegression from zero to ‖∇f‖ ≤ goal in the same objective, in float64.

    Its tolerance bounds the largest entry of the gradient, so looser ones are tried first, and the first fit
    that reaches the goal counts. If none does, the fit that came closest counts, and `reached` says so.
    """
    from sklearn.linear_model import LogisticRegression

    features, count = setting.features.astype(np.float64), len(setting.labels)
    objective, best = setting.retained(), {"gradient_norm": float("inf")}
    for tolerance in (goal / 3, goal / 12, goal / 48):
        model = LogisticRegression(
            C=1 / (LAMBDA * count), tol=tolerance, max_iter=20_000, fit_intercept=False, solver="lbfgs"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a line search that stops early is reported by `reached`
            seconds, _ = timed(lambda model=model: model.fit(features, setting.labels))  # type: ignore[misc]
        # Classes sum to zero at the minimiser of both, so the weights need no shift.
        norm = objective.certified_gradient(torch.from_numpy(model.coef_).reshape(-1)).norm
        figures = {
            "seconds": seconds,
            "gradient_norm": norm,
            "goal": goal,
            "iterations": int(model.n_iter_.max()),
            "reached": norm <= goal,
        }
        best = min(best, figures, key=lambda one: one["gradient_norm"])
        if norm <= goal:
            return figures
    return best


def write_before() -> None:
    """Measure this checkout without sketches and write results/engine_before.json."""
    erasures = {}
    for erasure in ERASURES:
        setting = _set_up(erasure)
        erasures[erasure.name] = _medians(
            {
                "unlearn": lambda s=setting, e=erasure: minimise(s.retained(), s.start, target=e.target),  # type: ignore[misc]
                "retrain": lambda s=setting, e=erasure: train(s.retained(), target=e.target),  # type: ignore[misc]
            }
        )
    BEFORE.write_text(json.dumps({"machine": machine(), "erasures": erasures}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["before"]:
        raise SystemExit("usage: python -m bench.prepared_erasures before")
    write_before()
