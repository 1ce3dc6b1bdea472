"""The kinds of certificate, and honest evidence for each."""

from __future__ import annotations

import math
from typing import Any

from lethe.certificate.evidence import ClassDrift, Curvature, EvidenceRecord, LanczosRun, TraceStep, Utility
from lethe.certificate.evidence_check import curvature_floor, distance_b1, distance_b2

TARGET, EPSILON, DELTA = 1e-4, 0.8, 1e-5
LAMBDA, FAILURE, DIMENSION = 0.01, 1e-9, 1000

# kind -> (mechanism, rule, assurance, family, calibration)
KINDS: dict[str, tuple[Any, Any, Any, str, Any]] = {
    "tr-proved": ("tr", "B1", "proved", "softmax", "analytic"),
    "tr-proved-classical": ("tr", "B1", "proved", "logistic", "classical"),
    "tr-conditional": ("tr", "B2", "conditional", "mlp", "analytic"),
    "tr-heuristic": ("tr", "B2", "heuristic", "resnet18", "analytic"),
    "retrain-proved": ("retrain", "retrain", "proved", "mlp", "analytic"),
    "tr-paper-as-published": ("tr-paper", "tr-paper", "as-published", "mlp", "classical"),
    "guo2020-as-published": ("guo2020", "guo2020", "as-published", "softmax", "analytic"),
    "zhang2024-as-published": ("zhang2024", "zhang2024", "as-published", "allcnn", "analytic"),
    "discarded-proved": ("discarded", "B1", "proved", "softmax", "analytic"),
    "discarded-conditional": ("discarded", "B2", "conditional", "mlp", "analytic"),
}


def uuid7(number: int) -> str:
    return f"018f0000-0000-7000-8000-{number:012x}"


def lanczos(target_floor: float = 0.05) -> Curvature:
    run = LanczosRun(
        route="direct",
        steps=400,
        failure_probability=FAILURE / 2,
        ritz_min=target_floor,
        ritz_max=1.0,
        ritz_values=spread(target_floor, 1.0, 400),
        rounding_slack=1e-12,
    )
    split = run.model_copy(update={"route": "split", "steps": 40, "failure_probability": FAILURE / 4})
    floor = curvature_floor(run, DIMENSION)
    assert floor is not None
    gradient = 1e-7 + 1e-12
    return Curvature(
        floor=floor,
        runs=(run, split.model_copy(update={"ritz_min": -0.9, "ritz_values": spread(-0.9, 1.0, 40)})),
        hessian_lipschitz=100.0,
        hessian_lipschitz_source="analytic",
        hessian_lipschitz_derivation="recursion over layers",
        ball_radius=3 * gradient / floor,
        kantorovich=100.0 * gradient / floor**2 * (1 + 2**-49),
    )


def spread(least: float, most: float, count: int) -> tuple[float, ...]:
    """Return the Ritz values of a run of `count` steps."""
    return (least, *(least + (most - least) * k / count for k in range(1, count - 1)), most)


def divergence(p: dict[str, int], q: dict[str, int]) -> float:
    total_p, total_q = sum(p.values()), sum(q.values())
    return math.fsum(n / total_p * math.log(n * total_q / (total_p * q[name])) for name, n in p.items())


def evidence_for(
    kind: str, certificate_id: str, *, gradient_norm: float = 5e-7, salt: str = "ab" * 16
) -> EvidenceRecord:
    _, rule, assurance, _, _ = KINDS[kind]
    curvature, distance = None, TARGET * 0.9
    if rule == "B1":
        distance = distance_b1(gradient_norm, 1e-12, LAMBDA)
    elif rule == "B2":
        gradient_norm = 1e-7
        curvature = lanczos()
        if assurance == "heuristic":
            curvature = curvature.model_copy(update={"hessian_lipschitz_source": "sampled"})
        distance = distance_b2(gradient_norm, 1e-12, curvature.floor, curvature.hessian_lipschitz)
    elif rule == "retrain":
        distance = 0.0
    published = assurance == "as-published"
    original, retained = {"0": 60, "1": 40}, {"0": 40, "1": 35}
    return EvidenceRecord(
        certificate_id=certificate_id,
        rule=rule,
        gradient_norm=gradient_norm,
        rounding_error=1e-12,
        distance=distance,
        curvature=curvature,
        paper_distance=distance if published else None,
        posterior_distance=distance_b1(gradient_norm, 1e-12, LAMBDA) if rule == "guo2020" else None,
        method={"lipschitz": 12.5} if published else {},
        trace=()
        if published
        else (
            TraceStep(gradient_norm=0.3, radius=1.0, ratio=0.98, accepted=True, passes=7.0, seconds=0.2),
            TraceStep(
                gradient_norm=gradient_norm, radius=2.0, ratio=None, accepted=True, passes=9.0, seconds=0.3
            ),
        ),
        shift=ClassDrift(
            original=original,
            erased={"0": 20, "1": 5},
            retained=retained,
            kl_retained_original=divergence(retained, original),
            kl_original_retained=divergence(original, retained),
        ),
        utility=Utility(f1_before=0.91, f1_after=0.9, loss_before=0.3, loss_after=0.31),
        solver={"outcome": "certified distance within target", "passes": 9.0},
        seconds_total=0.31,
        salt=salt,
    )
