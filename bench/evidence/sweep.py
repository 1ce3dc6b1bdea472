"""ΔF1 and seconds against class drift, KL 0 … 0.10, with every method on the same erasures (convex tier)."""

from typing import Any

from bench.evidence import scoring
from bench.evidence.comparison import biased, describe, drift_figures
from bench.evidence.methods import Erasure, best_damping
from bench.evidence.plan import DELTA, EPSILON, KL, plan
from bench.evidence.problems import Linear, Problem
from worker.evaluation.biased_deletions import Deletion, biased_deletion


def sweep_mnist() -> dict[str, Any]:
    """Sweep on MNIST."""
    return _swept("MNIST")


def sweep_cifar() -> dict[str, Any]:
    """Sweep on CIFAR-10."""
    return _swept("CIFAR-10")


def _swept(name: str) -> dict[str, Any]:
    sizes = plan()
    problem = Linear(name, rows=sizes.sweep_rows)
    points = _points(problem, sizes.sweep_kls, sizes.seeds, sizes.draws)
    constants = {"epsilon": EPSILON, "delta": DELTA, "seeds": list(sizes.seeds), "name": name}
    return constants | describe(problem) | {"points": points}


def _points(
    problem: Problem, kls: tuple[float, ...], seeds: tuple[int, ...], draws: int
) -> list[dict[str, Any]]:
    damping, points = None, []
    for seed in seeds:
        for kl in kls:
            deletion = _deletion(problem, kl, seed)
            erasure = Erasure(problem, deletion.rows, seed, damping)
            if damping is None:
                first = Erasure(problem, biased(problem, KL, seed).rows, seed)
                damping = erasure.damping = best_damping(first)
            figures = scoring.measure(erasure, draws=draws, replicates=None)
            points.append({"kl_asked": kl, "seed": seed} | drift_figures(deletion) | figures)
            print(f"  {problem.name}, seed {seed}, KL {kl}: done", flush=True)
    return points


def _deletion(problem: Problem, kl: float, seed: int) -> Deletion:
    """Return the deletion for a KL. At 0, draw as many rows as at the largest KL, regardless of class."""
    if kl > 0:
        return biased(problem, kl, seed)
    count = len(biased(problem, KL, seed).rows)
    return biased_deletion(problem.labels, count, weights={}, seed=seed)
