"""Networks: unlearned and certified under a condition, beside retraining from the anchor.

MNIST with 784-32-32-10 GELU, and a small AllCNN on CIFAR-10. The anchor is fitted on public rows that are
never erased; a biased set is erased from a version that was published with noise. Cost is counted in full
passes (rows touched / rows; a product counts as one), the same for both.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.datasets import Images, cifar10, mnist
from bench.measuring import RESULTS, machine
from certificate.privacy import sigma_for
from worker.engine import noise
from worker.engine.networks.architectures import AllCnn, Mlp, dimension, initial_point
from worker.engine.networks.kantorovich import Kantorovich
from worker.engine.networks.nearing import certify_nearer
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Solution, SolverSettings, minimise
from worker.evaluation.networks import NetworkHoldout
from worker.evaluation.sampling import biased_deletion
from worker.evaluation.utility import classification

EPSILON, DELTA, TARGET = 1.0, 1e-5, 1e-4
FAILURE = DELTA / 1e4
DRAWS = 5
SETTINGS = SolverSettings(max_steps=400)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    spec: Mlp | AllCnn
    lam: float
    public: int
    private: int
    erased: int
    anchor_lam: float = 1e-2
    anchor_steps: int = 400
    seed: int = 0


MNIST = Case("MNIST", Mlp((784, 32, 32, 10)), lam=0.25, public=5000, private=55_000, erased=7300)
CIFAR = Case(
    "CIFAR-10",
    AllCnn((3, 32, 32), 10, ((8, 2), (8, 2))),
    lam=0.5,
    public=2000,
    private=3000,
    erased=420,
    anchor_steps=12,
)


@dataclass(frozen=True, slots=True)
class Split:
    public: ArrayRows
    private: ArrayRows
    labels: NDArray[np.int64]
    test: ArrayRows


def run() -> None:
    report: dict[str, Any] = {"machine": machine(), "epsilon": EPSILON, "delta": DELTA, "target": TARGET}
    for case, images in ((MNIST, mnist()), (CIFAR, cifar10())):
        report[case.name] = measure(case, split(images, case))
        write(report)
    show(report)


def write(report: dict[str, Any]) -> None:
    """After each case: the next one takes minutes."""
    report["bars"] = bars(report)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "networks.json").write_text(json.dumps(report, indent=2) + "\n")


def split(images: Images, case: Case) -> Split:
    """Public rows first, then private ones, of one fixed shuffle; pixels divided by 255 and by a constant."""
    order = np.random.default_rng(case.seed).permutation(len(images.train_labels))
    pixels, labels = images.train_images[order], images.train_labels[order].astype(np.int64)
    last = case.public + case.private
    return Split(
        public=ArrayRows(_scaled(pixels[: case.public]), labels[: case.public]),
        private=ArrayRows(_scaled(pixels[case.public : last]), labels[case.public : last]),
        labels=labels[case.public : last],
        test=ArrayRows(_scaled(images.test_images), images.test_labels.astype(np.int64)),
    )


def _scaled(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return pixels.astype(np.float32) / np.float32(255)


def measure(case: Case, data: Split) -> dict[str, Any]:
    anchor = fitted_anchor(case, data)
    trained = _fit(_objective(case, data.private, anchor), anchor)
    sigma = sigma_for(epsilon=EPSILON, delta=DELTA - FAILURE, distance=TARGET)
    published = trained.w + sigma * noise.draw(len(trained.w))
    deletion = biased_deletion(data.labels, case.erased, seed=case.seed)
    kept = _without(data.private, data.labels, deletion.rows)
    retained = _objective(case, kept, anchor)
    unlearned = _fit(retained, published)
    certified = certify_nearer(
        retained,
        case.spec,
        unlearned.w,
        target=TARGET,
        failure_probability=FAILURE,
        settings=SETTINGS,
    )
    further = sum(solve.passes for solve in certified.solves)
    retrained = _fit(retained, anchor)
    truth = minimise(
        retained, retrained.w, target=TARGET * 1e-4, working_floor=case.lam / 4, settings=SETTINGS
    )
    holdout = NetworkHoldout(_objective(case, data.test, anchor))
    return {
        "network": str(case.spec),
        "dimension": dimension(case.spec),
        "lambda": case.lam,
        "rows": {"public": case.public, "private": case.private, "erased": case.erased},
        "kl_retained_original": deletion.shift.kl_retained_original,
        "sigma": sigma,
        "unlearn": _cost(unlearned),
        "certificate": _certificate(certified.found)
        | {"solve_passes": further, "passes": certified.passes, "rounds": 1 + len(certified.solves)},
        "retrain": _cost(retrained),
        "passes_ratio": unlearned.passes / retrained.passes,
        "passes_ratio_with_certificate": (unlearned.passes + further + certified.passes) / retrained.passes,
        "true_distance": float(torch.linalg.vector_norm(certified.w - truth.w)),
        "true_distance_before_tightening": float(torch.linalg.vector_norm(unlearned.w - truth.w)),
        "retrained_distance": float(torch.linalg.vector_norm(retrained.w - truth.w)),
        "f1": _scores(holdout, anchor, published, certified.w, truth.w, sigma),
    }


def fitted_anchor(case: Case, data: Split) -> Tensor:
    """On public rows; it need not be a minimiser."""
    start = initial_point(case.spec, case.seed)
    objective = NetworkObjective(data.public, case.spec, case.anchor_lam, start)
    settings = replace(SETTINGS, max_steps=case.anchor_steps)
    return minimise(objective, start, target=1e-2, working_floor=case.anchor_lam, settings=settings).w


def _objective(case: Case, rows: ArrayRows, anchor: Tensor) -> NetworkObjective:
    return NetworkObjective(rows, case.spec, case.lam, anchor)


def _fit(objective: NetworkObjective, start: Tensor) -> Solution:
    return minimise(objective, start, target=TARGET, working_floor=objective.lam / 4, settings=SETTINGS)


def _without(rows: ArrayRows, labels: NDArray[np.int64], erased: NDArray[np.int64]) -> ArrayRows:
    keep = torch.from_numpy(np.setdiff1d(np.arange(len(labels)), erased))
    features, targets = rows.sample(keep)
    return ArrayRows(features, targets)


def _cost(solution: Solution) -> dict[str, Any]:
    return {
        "outcome": str(solution.outcome),
        "gradient_norm": solution.gradient_norm,
        "steps": len(solution.steps),
        "products": sum(step.products for step in solution.steps),
        "passes": solution.passes,
        "seconds": solution.seconds,
    }


def _certificate(found: Kantorovich) -> dict[str, Any]:
    return {
        "verdict": str(found.verdict),
        "distance": found.distance,
        "curvature_floor": found.floor,
        "hessian_lipschitz": found.lipschitz,
        "h": found.h,
        "route": found.curvature.route if found.curvature else None,
        "passes": found.passes,
        "seconds": found.seconds,
    }


def _scores(
    holdout: NetworkHoldout,
    anchor: Tensor,
    published: Tensor,
    unlearned: Tensor,
    retrained: Tensor,
    sigma: float,
) -> dict[str, float]:
    """Micro-F1 in points; noised models as the mean over draws."""

    def noised(w: Tensor) -> float:
        draws = [w + sigma * noise.draw(len(w)) for _ in range(DRAWS)]
        return float(np.mean([100 * classification(holdout, draw).micro_f1 for draw in draws]))

    found = {
        "anchor": 100 * classification(holdout, anchor).micro_f1,
        "published": 100 * classification(holdout, published).micro_f1,
        "unlearned": noised(unlearned),
        "retrained": noised(retrained),
    }
    return found | {"delta": found["retrained"] - found["unlearned"]}


def bars(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in (name for name in (MNIST.name, CIFAR.name) if name in report):
        case = report[name]
        certificate = case["certificate"]
        certified = certificate["verdict"].startswith("certified") and certificate["distance"] <= TARGET
        found |= {
            f"{name}: certified, Δ": {"measured": certificate["distance"], "asked": TARGET, "met": certified},
            f"{name}: true distance within Δ": {
                "measured": case["true_distance"],
                "asked": certificate["distance"],
                "met": case["true_distance"] <= certificate["distance"],
            },
            f"{name}: ΔF1 after noise, absolute": {
                "measured": abs(case["f1"]["delta"]),
                "asked": 0.1,
                "met": abs(case["f1"]["delta"]) <= 0.1,
            },
            f"{name}: passes against retraining": {
                "measured": case["passes_ratio"],
                "asked": 0.6,
                "met": case["passes_ratio"] <= 0.6,
            },
        }
    return found


def show(report: dict[str, Any]) -> None:
    table = Table("", "measured", "asked", "", title="Networks")
    for name, bar in report["bars"].items():
        table.add_row(
            name, f"{bar['measured']:.3g}", f"{bar['asked']:.3g}", "met" if bar["met"] else "missed"
        )
    Console().print(table)
