"""Figures of one erasure: utility before and after the noise, distances, membership, seconds."""

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
    """Retraining from the anchor: as fast as `tr` solves, and as far as it goes, for the true distance."""

    w: Tensor
    exact: Tensor
    clock: Clock
    passes: float


def retrain(erasure: Erasure) -> Reference:
    problem, objective = erasure.problem, erasure.retained()
    clock, found = clocked(lambda: problem.solve(objective, objective.anchor, seed=erasure.seed))
    exact = problem.solve(objective, found.w, target=problem.target * 1e-4)
    return Reference(found.w, exact.w, clock, found.passes)


def measure(erasure: Erasure, *, draws: int, replicates: int | None) -> dict[str, Any]:
    """All methods; `replicates` None leaves the attack out. `tr` goes first, for the floor it certifies."""
    reference, test = retrain(erasure), erasure.problem.scored()
    found = {
        method: _method(erasure, unlearn(erasure, method), reference, test, draws, replicates)
        for method in reversed(METHODS)
    }
    return {
        "retrain": utility(test, reference.exact) | reference.clock.record() | {"passes": reference.passes},
        "original": utility(test, erasure.problem.start)
        | {"true_distance": distance(erasure.problem.start, reference.exact)},
        "methods": {method: found[method] for method in METHODS},
    }


def utility(holdout: Holdout, w: Tensor) -> dict[str, float]:
    """Micro-F1 in points."""
    return _points(classification(holdout, w))


def noised(holdout: Holdout, w: Tensor, sigma: float, *, seed: int, draws: int) -> dict[str, float]:
    """Means over draws, and how far the F1 of single draws spreads."""
    scores = [utility(holdout, released(w, sigma, seed=seed, draw=draw)) for draw in range(draws)]
    f1 = [score["f1"] for score in scores]
    return {
        "f1": float(np.mean(f1)),
        "f1_low": min(f1),
        "f1_high": max(f1),
        "loss": float(np.mean([score["loss"] for score in scores])),
    }


def distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b))


def _method(
    erasure: Erasure,
    found: Unlearned,
    reference: Reference,
    test: Holdout,
    draws: int,
    replicates: int | None,
) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "before_noise": utility(test, found.w),
        "released": None,
        "distance_own": found.distance,
        "distance_posterior": found.posterior,
        "true_distance": distance(found.w, reference.exact),
        "sigma": found.sigma,
        "basis": found.basis,
        **found.clock.record(),
        "passes": found.passes,
        "notes": found.notes,
    }
    if found.sigma is not None:
        figures["released"] = noised(test, found.w, found.sigma, seed=erasure.seed, draws=draws)
    if replicates is not None:
        figures["membership"] = _membership(erasure, found, reference, test, replicates)
    return figures


def _membership(
    erasure: Erasure, found: Unlearned, reference: Reference, test: Holdout, replicates: int
) -> dict[str, Any]:
    """The release against a retrained model with the same noise; without certificate, no release."""
    forget = erasure.problem.scored(erasure.erased)
    settings = AttackSettings(replicates=replicates, seed=erasure.seed)

    def attack(sigma: float) -> dict[str, Any]:
        # two draws: the retrained model's noise is its own
        pair = [
            released(w, sigma, seed=erasure.seed, draw=draw)
            for draw, w in ((0, found.w), (1000, reference.exact))
        ]
        return attacked(
            membership_report(forget, test, unlearned=pair[0], retrained=pair[1], settings=settings)
        )

    return {
        "before_noise": attack(0.0) if erasure.seed == 0 else None,  # once is enough to see it
        "released": None if found.sigma is None else attack(found.sigma),
    }


def attacked(report: MembershipReport) -> dict[str, Any]:
    """AUC in points."""
    return {
        "members": report.members,
        "unseen": report.unseen,
        "unlearned": _result(report.unlearned),
        "retrained": _result(report.retrained),
        "delta_auc_loss": estimate(report.delta_auc_loss),
        "delta_auc_fitted": estimate(report.delta_auc_fitted),
    }


def estimate(found: Estimate | None) -> dict[str, float] | None:
    return None if found is None else {k: 100 * v for k, v in dataclasses.asdict(found).items()}


def _result(found: ModelResult) -> dict[str, Any]:
    return {
        "auc_loss": estimate(found.loss.auc),
        "auc_fitted": estimate(found.fitted.auc),
        "tpr_loss": estimate(found.loss.tpr[FPR]),
        "tpr_fitted": estimate(found.fitted.tpr[FPR]),
    }


def _points(found: Classification) -> dict[str, float]:
    return {"f1": 100 * found.micro_f1, "loss": found.loss}
