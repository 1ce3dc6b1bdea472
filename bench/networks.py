"""Networks: unlearned and certified under a condition, beside retraining from the anchor.

MNIST with 784-32-32-10 GELU, and a small AllCNN on CIFAR-10 at 16x16 pixels. The anchor is fitted on public
rows that are never erased; a biased set is erased from a version that was published with noise. Cost is
counted in full passes (rows touched / rows; a product counts as one), the same for both.

BENCH_CASE=CIFAR-10 measures that one alone; the other's figures stay if they are of the same commit.
"""

import json
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.datasets import Images, cifar10, mnist
from bench.measuring import RESULTS, machine, timed
from bench.network_data import scaled, stochastic_anchor
from certificate.privacy import grid_step, sigma_for
from worker.engine import noise
from worker.engine.networks.architectures import AllCnn, Mlp, dimension, initial_point
from worker.engine.networks.nearing import Neared, certify_nearer
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import CertifiedGradient
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
    anchor_epochs: int = 0  # of stochastic steps instead
    side: int | None = None  # of images averaged down
    centre: float = 0.0  # a constant taken from every pixel
    seed: int = 0


MNIST = Case("MNIST", Mlp((784, 32, 32, 10)), lam=0.25, public=5000, private=55_000, erased=7300)
CIFAR = Case(
    "CIFAR-10",
    AllCnn((3, 16, 16), 10, ((16, 2), (16, 2))),
    lam=0.1,
    public=4000,
    private=8000,
    erased=1120,
    anchor_epochs=10,
    side=16,
    centre=0.5,
)


@dataclass(frozen=True, slots=True)
class Split:
    public: ArrayRows
    private: ArrayRows
    labels: NDArray[np.int64]
    test: ArrayRows


def run() -> None:
    report: dict[str, Any] = {"machine": machine(), "epsilon": EPSILON, "delta": DELTA, "target": TARGET}
    asked = os.environ.get("BENCH_CASE")
    if asked:
        report |= _kept(report["machine"]["commit"])
    for case, images in ((MNIST, mnist), (CIFAR, cifar10)):
        if not asked or asked == case.name:
            report[case.name] = _timed(case, images())
            write(report)
    show(report)


def _timed(case: Case, images: Images) -> dict[str, Any]:
    seconds, found = timed(lambda: measure(case, split(images, case)))
    return found | {"seconds": seconds}


def _kept(commit: str | None) -> dict[str, Any]:
    """Figures of an earlier run, if it was of this very commit."""
    path = RESULTS / "networks.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    if commit is None or earlier.get("machine", {}).get("commit") != commit:
        return {}
    return {name: earlier[name] for name in (MNIST.name, CIFAR.name) if name in earlier}


def write(report: dict[str, Any]) -> None:
    """After each case: the next one takes minutes."""
    report["bars"] = bars(report)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "networks.json").write_text(json.dumps(report, indent=2) + "\n")


def split(images: Images, case: Case) -> Split:
    """Public rows first, then private ones, of one fixed shuffle."""
    shuffled = np.random.default_rng(case.seed).permutation(len(images.train_labels))
    order = shuffled[: case.public + case.private]
    pixels = scaled(images.train_images[order], images.shape, case.side, case.centre)
    labels = images.train_labels[order].astype(np.int64)
    test = scaled(images.test_images, images.shape, case.side, case.centre)
    return Split(
        public=ArrayRows(pixels[: case.public], labels[: case.public]),
        private=ArrayRows(pixels[case.public :], labels[case.public :]),
        labels=labels[case.public :],
        test=ArrayRows(test, images.test_labels.astype(np.int64)),
    )


def released(w: Tensor, sigma: float) -> Tensor:
    """Release a copy of w as the service does: noised, on the public grid."""
    step = grid_step(sigma)
    return noise.on_grid(noise.noised(w, sigma=sigma, step=step), step).to(torch.float64)


def measure(case: Case, data: Split) -> dict[str, Any]:
    anchor = fitted_anchor(case, data)
    trained = _fit(_objective(case, data.private, anchor), anchor)
    sigma = sigma_for(epsilon=EPSILON, delta=DELTA - FAILURE, distance=TARGET)
    published = released(trained.w, sigma)
    sizes = [_erasure(case, data, anchor, published, case.erased // part) for part in (100, 10)]
    found = _erasure(case, data, anchor, published, case.erased)
    certified = certify_nearer(
        found.retained,
        case.spec,
        found.unlearned.w,
        target=TARGET,
        failure_probability=FAILURE,
        settings=SETTINGS,
        gradient=CertifiedGradient(found.unlearned.gradient_norm, found.unlearned.rounding),
    )
    truth = minimise(
        found.retained, found.retrained.w, target=TARGET * 1e-4, working_floor=case.lam / 4, settings=SETTINGS
    )
    holdout = NetworkHoldout(_objective(case, data.test, anchor))
    return _described(case, sigma) | {
        "train": _cost(trained),
        "by_erasure": [it.summary() for it in (*sizes, found)],
        "kl_retained_original": found.kl,
        "unlearn": _cost(found.unlearned),
        "retrain": _cost(found.retrained),
        "passes_ratio": found.ratio,
        "certificate": _certificate(certified),
        "passes_ratio_with_certificate": (found.unlearned.passes + _bill(certified)) / found.retrained.passes,
        "true_distance": float(torch.linalg.vector_norm(certified.w - truth.w)),
        "true_distance_before_tightening": float(torch.linalg.vector_norm(found.unlearned.w - truth.w)),
        "retrained_distance": float(torch.linalg.vector_norm(found.retrained.w - truth.w)),
        "reference": _cost(truth),
        "f1": _scores(holdout, anchor, published, certified.w, truth.w, sigma),
    }


@dataclass(frozen=True, slots=True)
class Erased:
    """The same rows left, from the published version and from the anchor, to the same gradient."""

    rows: int
    kl: float
    gradients: tuple[float, float]  # ‖g‖ at the published version and at the anchor: how far either has to go
    retained: NetworkObjective
    unlearned: Solution
    retrained: Solution

    @property
    def ratio(self) -> float:
        return self.unlearned.passes / self.retrained.passes

    def summary(self) -> dict[str, Any]:
        passes = {"unlearn_passes": self.unlearned.passes, "retrain_passes": self.retrained.passes}
        return {"erased": self.rows, "start_gradients": self.gradients, **passes, "ratio": self.ratio}


def _erasure(case: Case, data: Split, anchor: Tensor, published: Tensor, rows: int) -> Erased:
    deletion = biased_deletion(data.labels, rows, seed=case.seed)
    retained = _objective(case, _without(data.private, data.labels, deletion.rows), anchor)
    norms = retained.evaluate(published).norm, retained.evaluate(anchor).norm
    kl = deletion.shift.kl_retained_original
    return Erased(rows, kl, norms, retained, _fit(retained, published), _fit(retained, anchor))


def _described(case: Case, sigma: float) -> dict[str, Any]:
    return {
        "network": str(case.spec),
        "dimension": dimension(case.spec),
        "lambda": case.lam,
        "rows": {"public": case.public, "private": case.private, "erased": case.erased},
        "pixels": {"side": case.side, "centre": case.centre},
        "sigma": sigma,
    }


def _bill(certified: Neared) -> float:
    return certified.passes + sum(solve.passes for solve in certified.solves)


def fitted_anchor(case: Case, data: Split) -> Tensor:
    """On public rows; it need not be a minimiser."""
    start = initial_point(case.spec, case.seed)
    if case.anchor_epochs:
        return stochastic_anchor(data.public, case.spec, start, epochs=case.anchor_epochs, seed=case.seed)
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


def _certificate(certified: Neared) -> dict[str, Any]:
    found = certified.found
    return {
        "verdict": str(found.verdict),
        "distance": found.distance,
        "gradient": found.gradient_norm + found.rounding,
        "rounding": found.rounding,
        "curvature_floor": found.floor,
        "hessian_lipschitz": found.lipschitz,
        "h": found.h,
        "route": found.curvature.route if found.curvature else None,
        "lanczos_steps": found.curvature.runs[-1].steps if found.curvature and found.curvature.runs else None,
        "passes": certified.passes,
        "solve_passes": sum(solve.passes for solve in certified.solves),
        "solves": len(certified.solves),
        "seconds": certified.seconds,
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
        draws = [released(w, sigma) for _ in range(DRAWS)]
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
