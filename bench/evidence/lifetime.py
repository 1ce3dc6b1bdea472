"""Fifty biased batches one after another, each from the noised version that the last one published.

After every batch the model is also retrained, so that a drift would show: in the true distance, in the F1
beside retraining's, or in the seconds. ε is that of a subject erased by the first batch, for whom every
release counts.
"""

from typing import Any

import numpy as np

from bench.evidence import scoring
from bench.evidence.clock import clocked
from bench.evidence.comparison import described
from bench.evidence.methods import released
from bench.evidence.plan import DELTA, EPSILON, plan
from bench.evidence.problems import Linear
from certificate.privacy import compose, epsilon_for, sigma_for
from worker.evaluation.sampling import biased_deletion
from worker.evaluation.shift import divergence

SEED = 5


def measure() -> dict[str, Any]:
    sizes = plan()
    problem = Linear("MNIST", rows=sizes.lifetime_rows)
    order = _order(problem, sizes.batches, sizes.lifetime_batch)
    sigma = sigma_for(epsilon=EPSILON, delta=DELTA, distance=problem.target)
    test, published = problem.scored(), problem.start
    batches = []
    for index in range(sizes.batches):
        erased = order[: (index + 1) * sizes.lifetime_batch]
        kept = problem.kept(erased)
        objective, again = problem.objective(kept), problem.objective(kept)
        clock, found = clocked(lambda: problem.solve(objective, published, seed=index))  # noqa: B023
        other, retrained = clocked(lambda: problem.solve(again, again.anchor, seed=index))  # noqa: B023
        exact = problem.solve(again, retrained.w, target=problem.target * 1e-4).w
        published = released(found.w, sigma, seed=SEED, draw=index)
        shift = compose([problem.target / sigma] * (index + 1))
        batches.append(
            {
                "batch": index + 1,
                "erased": len(erased),
                "kl_retained_original": _kl(problem.labels, kept),
                "outcome": found.outcome.name,
                "certified_distance": found.distance,
                "true_distance": scoring.distance(found.w, exact),
                "f1": scoring.utility(test, published)["f1"],
                "f1_retrained": scoring.utility(test, exact)["f1"],
                "epsilon": epsilon_for(delta=DELTA, shift=shift),
                **clock.record(),
                "passes": found.passes,
                "retrain_processor_seconds": other.processor,
                "retrain_passes": retrained.passes,
            }
        )
    return described(problem) | {
        "seed": SEED,
        "epsilon_of_a_release": EPSILON,
        "delta": DELTA,
        "sigma": sigma,
        "rows_a_batch": sizes.lifetime_batch,
        "batches": batches,
    }


def _order(problem: Linear, batches: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A biased draw's rows batch by batch: with one seed, a smaller deletion begins a larger one."""
    rows: list[int] = []
    for index in range(batches):
        drawn = biased_deletion(problem.labels, (index + 1) * size, seed=SEED).rows
        rows += np.setdiff1d(drawn, rows).tolist()
    return np.array(rows, dtype=np.int64)


def _kl(labels: np.ndarray[Any, np.dtype[np.int64]], kept: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    counts = [np.bincount(part, minlength=10) for part in (labels[kept], labels)]
    left, right = ({str(c): int(n) for c, n in enumerate(part)} for part in counts)
    found = divergence(left, right)
    assert found is not None
    return found
