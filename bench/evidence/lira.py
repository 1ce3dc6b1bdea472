"""U-LiRA on a small convex problem: the attack that knows the whole pipeline, with a few shadow models.

A base of MNIST rows stays. Random halves of a few hundred more are learned and then erased. `none` erases
nothing and shows what the attack can find, `retrain` leaves nothing to find. Releases carry each method's own
noise. Figures before noise are included because noise that destroys a model hides everything.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bench.engine import Data
from bench.evidence import features
from bench.evidence.methods import METHODS, Erasure, released, unlearn
from bench.evidence.plan import DELTA, EPSILON, plan
from bench.evidence.problems import Linear
from bench.evidence.scoring import estimate
from worker.evaluation.lira import u_lira
from worker.evaluation.membership import row_outputs

SEED, TARGETS = 3, 4


class Attacked:
    """Pipelines over one base. Results are cached by mask, since every method sees the same masks."""

    def __init__(self, base: int, rows: int) -> None:
        self._data, self._test = features.load("MNIST", base + rows)
        self.base, self.rows = base, rows
        self._holdout = Data(self._data.features[base:], self._data.labels[base:]).objective()
        self._trained: dict[bytes, Linear] = {}
        self._ends: dict[tuple[bytes, str], tuple[Tensor, float | None]] = {}

    def pipeline(self, method: str, *, noise: bool) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
        """Return the pipeline of a method, with or without release noise, for `u_lira`."""

        def margins(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
            w, sigma = self._end(mask, method)
            if noise and sigma is not None:
                key = int.from_bytes(np.packbits(mask).tobytes()[:6])
                w = released(w, sigma, seed=SEED, draw=key)
            return row_outputs(self._holdout, w).margins

        return margins

    def _end(self, mask: NDArray[np.bool_], method: str) -> tuple[Tensor, float | None]:
        key = (mask.tobytes(), method)
        if key not in self._ends:
            self._ends[key] = self._run(mask, method)
        return self._ends[key]

    def _run(self, mask: NDArray[np.bool_], method: str) -> tuple[Tensor, float | None]:
        problem = self._problem(mask)
        erasure = Erasure(problem, np.arange(self.base, len(problem.labels)), SEED)
        if method == "none":
            return problem.start, None
        if method == "retrain":
            objective = erasure.retained()
            return problem.solve(objective, objective.anchor).w, None
        result = unlearn(erasure, method)
        return result.w, result.sigma

    def _problem(self, mask: NDArray[np.bool_]) -> Linear:
        key = mask.tobytes()
        if key not in self._trained:
            rows = np.concatenate([np.arange(self.base), self.base + np.flatnonzero(mask)])
            part = Data(self._data.features[rows], self._data.labels[rows])
            self._trained[key] = Linear("MNIST", rows=len(rows), loaded=(part, self._test))
        return self._trained[key]


def measure() -> dict[str, Any]:
    """Attack every method."""
    sizes = plan()
    attacked = Attacked(5 * sizes.lira_rows, sizes.lira_rows)
    results: dict[str, Any] = {}
    for method in ("none", "retrain", *METHODS):
        results[method] = {"before_noise": _attack(attacked, method, sizes.lira_shadows, noise=False)}
        if method in METHODS:
            results[method]["released"] = _attack(attacked, method, sizes.lira_shadows, noise=True)
    return {
        "seed": SEED,
        "epsilon": EPSILON,
        "delta": DELTA,
        "base_rows": attacked.base,
        "rows": attacked.rows,
        "shadows": sizes.lira_shadows,
        "targets": TARGETS,
        "methods": results,
    }


def _attack(attacked: Attacked, method: str, shadows: int, *, noise: bool) -> dict[str, Any]:
    result = u_lira(
        attacked.pipeline(method, noise=noise),
        rows=attacked.rows,
        shadows=shadows,
        targets=TARGETS,
        seed=SEED,
    ).attack
    return {"auc": estimate(result.auc), "tpr": estimate(result.tpr[0.01])}
