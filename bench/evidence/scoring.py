"""Figures of one erasure: utility before and after noise, distances, membership and seconds."""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.evidence.clock import Clock, clocked
from bench.evidence.methods import METHODS, Erasure, Unlearned, released, unlearn
from worker.evaluation.membership import AttackSettings, MembershipReport, ModelResult, membership_report
from worker.evaluation.ranking import Estimate
from worker.evaluation.utility import Classification, Holdout, classification

FPR = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Retraining from the anchor: to the target of `tr`, and then to convergence for the true distance."""

    w: Tensor
    exact: Tensor
    clock: Clock
    passes: float


def retrain(erasure: Erasure) -> Reference:
    """Retrain on the retained rows."""
    problem, objective = erasure.problem, erasure.retained()
    clock, result = clocked(lambda: problem.solve(objective, objective.anchor, seed=erasure.seed))
    exact = problem.solve(objective, result.w, target=problem.target * 1e-4)
    return Reference(result.w, exact.w, clock, result.passes)


def measure(erasure: Erasure, *, draws: int, replicates: int | None) -> dict[str, Any]:
    """Measure all methods.

    `tr` goes first, for the floor it certifies. `replicates` None skips the attack.
    """
    reference, test = retrain(erasure), erasure.problem.scored()
    result = {
        method: _method(erasure, unlearn(erasure, method), reference, test, draws, replicates)
        for method in reversed(METHODS)
    }
    return {
        "retrain": utility(test, reference.exact) | reference.clock.record() | {"passes": reference.passes},
        "original": utility(test, erasure.problem.start)
        | {"true_distance": distance(erasure.problem.start, reference.exact)},
        "methods": {method: result[method] for method in METHODS},
    }


def utility(holdout: Holdout, w: Tensor) -> dict[str, float]:
    """Return micro-F1 in points and the loss."""
    return _points(classification(holdout, w))


def noised(holdout: Holdout, w: Tensor, sigma: float, *, seed: int, draws: int) -> dict[str, float]:
    """Return means over draws, and the range of F1 over single draws."""
    scores = [utility(holdout, released(w, sigma, seed=seed, draw=draw)) for draw in range(draws)]
    f1 = [score["f1"] for score in scores]
    return {
        "f1": float(np.mean(f1)),
        "f1_low": min(f1),
        "f1_high": max(f1),
        "loss": float(np.mean([score["loss"] for score in scores])),
    }


def distance(a: Tensor, b: Tensor) -> float:
    """Return ‖a - b‖."""
    return float(torch.linalg.vector_norm(a - b))


def _method(
    erasure: Erasure,
    result: Unlearned,
    reference: Reference,
    test: Holdout,
    draws: int,
    replicates: int | None,
) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "before_noise": utility(test, result.w),
        "released": None,
        "distance_own": result.distance,
        "distance_posterior": result.posterior,
        "true_distance": distance(result.w, reference.exact),
        "sigma": result.sigma,
        "basis": result.basis,
        **result.clock.record(),
        "passes": result.passes,
        "notes": result.notes,
    }
    if result.sigma is not None:
        figures["released"] = noised(test, result.w, result.sigma, seed=erasure.seed, draws=draws)
    if replicates is not None:
        figures["membership"] = _membership(erasure, result, reference, test, replicates)
    return figures


def _membership(
    erasure: Erasure, result: Unlearned, reference: Reference, test: Holdout, replicates: int
) -> dict[str, Any]:
    """Attack the release and a retrained model with the same noise.

    Without a certificate there is no release.
    """
    forget = erasure.problem.scored(erasure.erased)
    settings = AttackSettings(replicates=replicates, seed=erasure.seed)

    def attack(sigma: float) -> dict[str, Any]:
        # Two draws, because the retrained model has its own noise.
        pair = [
            released(w, sigma, seed=erasure.seed, draw=draw)
            for draw, w in ((0, result.w), (1000, reference.exact))
        ]
        return attacked(
            membership_report(forget, test, unlearned=pair[0], retrained=pair[1], settings=settings)
        )

    return {
        "before_noise": attack(0.0) if erasure.seed == 0 else None,  # one seed is enough
        "released": None if result.sigma is None else attack(result.sigma),
    }


def attacked(report: MembershipReport) -> dict[str, Any]:
    """Return the report of an attack, with AUC in points."""
    return {
        "members": report.members,
        "unseen": report.unseen,
        "unlearned": _result(report.unlearned),
        "retrained": _result(report.retrained),
        "delta_auc_loss": estimate(report.delta_auc_loss),
        "delta_auc_fitted": estimate(report.delta_auc_fitted),
    }


def estimate(result: Estimate | None) -> dict[str, float] | None:
    """Return an estimate in points."""
    return None if result is None else {k: 100 * v for k, v in dataclasses.asdict(result).items()}


def _result(result: ModelResult) -> dict[str, Any]:
    return {
        "auc_loss": estimate(result.loss.auc),
        "auc_fitted": estimate(result.fitted.auc),
        "tpr_loss": estimate(result.loss.tpr[FPR]),
        "tpr_fitted": estimate(result.fitted.tpr[FPR]),
    }


def _points(result: Classification) -> dict[str, float]:
    return {"f1": 100 * result.micro_f1, "loss": result.loss}
