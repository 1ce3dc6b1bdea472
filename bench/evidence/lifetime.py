"""Fifty biased batches in a row, each starting from the noised version that the previous one published.

After every batch the model is also retrained. An accumulating error would show in the true distance, in the
F1 relative to retraining, or in the seconds. ε is that of a subject erased by the first batch, for whom every
release counts.
"""

from typing import Any

import numpy as np

from bench.evidence import scoring
from bench.evidence.clock import clocked
from bench.evidence.comparison import describe
from bench.evidence.methods import released
from bench.evidence.plan import DELTA, EPSILON, plan
from bench.evidence.problems import Linear
from lethe.certificate.privacy import compose, epsilon_for, sigma_for
from worker.evaluation.biased_deletions import biased_deletion
from worker.evaluation.class_drift import divergence

SEED = 5


def measure() -> dict[str, Any]:
    """Run all batches and return their figures."""
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
        clock, solution = clocked(lambda: problem.solve(objective, published, seed=index))  # noqa: B023
        other, retrained = clocked(lambda: problem.solve(again, again.anchor, seed=index))  # noqa: B023
        exact = problem.solve(again, retrained.w, target=problem.target * 1e-4).w
        published = released(solution.w, sigma, seed=SEED, draw=index)
        shift = compose([problem.target / sigma] * (index + 1))
        batches.append(
            {
                "batch": index + 1,
                "erased": len(erased),
                "kl_retained_original": _kl(problem.labels, kept),
                "outcome": solution.outcome.name,
                "certified_distance": solution.distance,
                "true_distance": scoring.distance(solution.w, exact),
                "f1": scoring.utility(test, published)["f1"],
                "f1_retrained": scoring.utility(test, exact)["f1"],
                "epsilon": epsilon_for(delta=DELTA, shift=shift),
                **clock.record(),
                "passes": solution.passes,
                "retrain_processor_seconds": other.processor,
                "retrain_passes": retrained.passes,
            }
        )
    return describe(problem) | {
        "seed": SEED,
        "epsilon_of_a_release": EPSILON,
        "delta": DELTA,
        "sigma": sigma,
        "rows_a_batch": sizes.lifetime_batch,
        "batches": batches,
    }


def _order(problem: Linear, batches: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the rows of one biased draw, batch by batch.

    With one seed, a smaller deletion is a prefix of a larger one.
    """
    rows: list[int] = []
    for index in range(batches):
        drawn = biased_deletion(problem.labels, (index + 1) * size, seed=SEED).rows
        rows += np.setdiff1d(drawn, rows).tolist()
    return np.array(rows, dtype=np.int64)


def _kl(labels: np.ndarray[Any, np.dtype[np.int64]], kept: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    counts = [np.bincount(part, minlength=10) for part in (labels[kept], labels)]
    left, right = ({str(c): int(n) for c, n in enumerate(part)} for part in counts)
    kl = divergence(left, right)
    assert kl is not None
    return kl
