"""Tables 1 to 3 of the paper at KL ≈ 0.104: utility, membership, seconds, and the quality of each bound."""

from dataclasses import replace
from typing import Any

import numpy as np

from bench.evidence import scoring
from bench.evidence.methods import Erasure, best_damping
from bench.evidence.plan import DELTA, EPSILON, KL, Plan, plan
from bench.evidence.problems import Linear, Problem, cifar_network, mnist_network
from bench.evidence.problems import resnet as linearised_resnet
from worker.evaluation.biased_deletions import Deletion, deletion_reaching

SIGMAS = tuple(float(s) for s in np.logspace(-4, 3, 15))


def mnist() -> dict[str, Any]:
    """Compare the methods on MNIST, linear."""
    return compare_methods(Linear("MNIST", rows=plan().convex_rows), plan())


def fashion() -> dict[str, Any]:
    """Compare the methods on Fashion-MNIST, linear."""
    return compare_methods(Linear("Fashion-MNIST", rows=plan().convex_rows), plan())


def cifar() -> dict[str, Any]:
    """Compare the methods on CIFAR-10, linear."""
    return compare_methods(Linear("CIFAR-10", rows=plan().colour_rows), plan())


def mlp() -> dict[str, Any]:
    """Compare the methods on the MNIST network."""
    return compare_methods(mnist_network(plan()), plan())


def allcnn() -> dict[str, Any]:
    """Compare the methods on the CIFAR-10 network."""
    sizes = plan()
    return compare_methods(cifar_network(sizes), replace(sizes, seeds=sizes.seeds[: sizes.cnn_seeds]))


def resnet() -> dict[str, Any]:
    """Compare the methods on the linearised ResNet-18 on CIFAR-10."""
    sizes = plan()
    return compare_methods(linearised_resnet(sizes), replace(sizes, seeds=sizes.seeds[: sizes.resnet_seeds]))


def compare_methods(problem: Problem, sizes: Plan) -> dict[str, Any]:
    """Compare all methods on one problem."""
    return {
        "epsilon": EPSILON,
        "delta": DELTA,
        "kl_asked": KL,
        "seeds": list(sizes.seeds),
        "draws": sizes.draws,
        "replicates": sizes.replicates,
        "name": problem.name,
    } | _problem(problem, sizes)


def describe(problem: Problem) -> dict[str, Any]:
    """Return what the report says about a problem."""
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
    """Return the biased deletion that reaches `kl`."""
    return deletion_reaching(problem.labels, kl, seed=seed)


def drift_figures(deletion: Deletion) -> dict[str, Any]:
    """Return the size and the class drift of a deletion, under their report keys."""
    return {
        "erased": len(deletion.rows),
        "kl_retained_original": deletion.drift.kl_retained_original,
        "kl_original_retained": deletion.drift.kl_original_retained,
    }


def _problem(problem: Problem, sizes: Plan) -> dict[str, Any]:
    runs, damping = [], None
    for seed in sizes.seeds:
        deletion = biased(problem, KL, seed)
        erasure = Erasure(problem, deletion.rows, seed, damping)
        if damping is None:
            damping = erasure.damping = best_damping(erasure)
        figures = scoring.measure(erasure, draws=sizes.draws, replicates=sizes.replicates)
        runs.append({"seed": seed} | drift_figures(deletion) | figures)
        print(f"  {problem.name}, seed {seed}: done", flush=True)
    report = describe(problem) | {"damping_of_zhang2024": damping, "runs": runs}
    if isinstance(problem, Linear) or problem.name.startswith("MNIST"):
        report["f1_by_sigma"] = _by_sigma(problem, sizes)
    return report


def _by_sigma(problem: Problem, sizes: Plan) -> list[dict[str, float]]:
    """Return F1 of the retrained model of the first seed, for a range of noise levels."""
    seed = sizes.seeds[0]
    objective = problem.objective(problem.kept(biased(problem, KL, seed).rows))
    w, test = problem.solve(objective, problem.start).w, problem.scored()
    return [
        {"sigma": sigma} | scoring.noised(test, w, sigma, seed=seed, draws=sizes.draws) for sigma in SIGMAS
    ]
