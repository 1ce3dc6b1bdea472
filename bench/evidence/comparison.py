"""Tables 1 to 3 of the paper at KL ≈ 0.104: utility, membership, seconds; and how good each bound is."""

from dataclasses import replace
from typing import Any

import numpy as np

from bench.evidence import scoring
from bench.evidence.methods import Erasure, best_damping, convex_tier
from bench.evidence.plan import DELTA, EPSILON, KL, Plan, plan
from bench.evidence.problems import Linear, Problem, cifar_network, mnist_network
from worker.evaluation.sampling import Deletion, deletion_reaching

SIGMAS = tuple(float(s) for s in np.logspace(-4, 3, 15))


def mnist() -> dict[str, Any]:
    return compared(Linear("MNIST", rows=plan().convex_rows), plan())


def fashion() -> dict[str, Any]:
    return compared(Linear("Fashion-MNIST", rows=plan().convex_rows), plan())


def cifar() -> dict[str, Any]:
    return compared(Linear("CIFAR-10", rows=plan().colour_rows), plan())


def mlp() -> dict[str, Any]:
    return compared(mnist_network(plan()), plan())


def allcnn() -> dict[str, Any]:
    sizes = plan()
    return compared(cifar_network(sizes), replace(sizes, seeds=sizes.seeds[: sizes.cnn_seeds]))


def compared(problem: Problem, sizes: Plan) -> dict[str, Any]:
    return {
        "epsilon": EPSILON,
        "delta": DELTA,
        "kl_asked": KL,
        "seeds": list(sizes.seeds),
        "draws": sizes.draws,
        "replicates": sizes.replicates,
        "name": problem.name,
    } | _problem(problem, sizes)


def described(problem: Problem) -> dict[str, Any]:
    return {
        "tier": problem.tier,
        "model": problem.model,
        "sees": problem.sees,
        "rows": len(problem.labels),
        "dimension": problem.dimension,
        "lambda": problem.lam,
        "target_distance": problem.target,
    }


def biased(problem: Problem, kl: float, seed: int) -> Deletion:
    return deletion_reaching(problem.labels, kl, seed=seed)


def shift(deletion: Deletion) -> dict[str, Any]:
    return {
        "erased": len(deletion.rows),
        "kl_retained_original": deletion.shift.kl_retained_original,
        "kl_original_retained": deletion.shift.kl_original_retained,
    }


def _problem(problem: Problem, sizes: Plan) -> dict[str, Any]:
    runs, damping = [], None
    for seed in sizes.seeds:
        deletion = biased(problem, KL, seed)
        erasure = Erasure(problem, deletion.rows, seed, damping)
        if damping is None:
            damping = erasure.damping = best_damping(erasure)
        found = scoring.measure(erasure, draws=sizes.draws, replicates=sizes.replicates)
        runs.append({"seed": seed} | shift(deletion) | found)
        print(f"  {problem.name}, seed {seed}: done", flush=True)
    report = described(problem) | {"damping_of_zhang2024": damping, "runs": runs}
    if convex_tier(problem) or problem.name.startswith("MNIST"):
        report["f1_by_sigma"] = _by_sigma(problem, sizes)
    return report


def _by_sigma(problem: Problem, sizes: Plan) -> list[dict[str, float]]:
    """What noise alone does to the retrained model of the first seed."""
    seed = sizes.seeds[0]
    objective = problem.objective(problem.kept(biased(problem, KL, seed).rows))
    w, test = problem.solve(objective, problem.start).w, problem.scored()
    return [
        {"sigma": sigma} | scoring.noised(test, w, sigma, seed=seed, draws=sizes.draws) for sigma in SIGMAS
    ]
