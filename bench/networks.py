"""Network benchmark: certified unlearning (conditional tier) against retraining from the anchor.

MNIST with a 784-32-32-10 GELU network, and a small AllCNN on CIFAR-10 at 16x16 pixels. The anchor is fitted
on public rows that are never erased. A biased set is erased from a version that was published with noise.
Costs are in full passes (rows touched / rows; a product counts as one) for both. Unlearning finds a curvature
sketch, as it does in the service after an idle moment; its preparation is timed and not part of the erasure.
The same erasure without a sketch is measured as well.

BENCH_CASE=CIFAR-10 measures that case alone. The figures of the other are kept if they come from the same
commit.
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
from bench.measurement import RESULTS, machine, timed
from bench.network_data import scaled, stochastic_anchor
from lethe.certificate.privacy import grid_step, sigma_for
from worker.engine import noise
from worker.engine.networks.architectures import AllCnn, Mlp, dimension, initial_point
from worker.engine.networks.certify_rounds import RoundsResult, certify_in_rounds
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows
from worker.engine.sketch import CurvatureSketch, build_sketch
from worker.engine.trust_region import Solution, SolverSettings, minimise
from worker.evaluation.biased_deletions import biased_deletion
from worker.evaluation.utility import NetworkHoldout, classification
from worker.sketches import NETWORK_DIRECTIONS

EPSILON, DELTA, TARGET = 1.0, 1e-5, 1e-4
FAILURE = DELTA / 1e4
DRAWS = 5
SETTINGS = SolverSettings(max_steps=400)


@dataclass(frozen=True, slots=True)
class Case:
    """One dataset, network and erasure."""

    name: str
    spec: Mlp | AllCnn
    lam: float
    public: int
    private: int
    erased: int
    anchor_lam: float = 1e-2
    anchor_steps: int = 400
    anchor_epochs: int = 0  # of stochastic steps in place of anchor_steps
    side: int | None = None  # images are averaged down to this side
    centre: float = 0.0  # constant subtracted from every pixel
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
    """Public, private and test rows of a case."""

    public: ArrayRows
    private: ArrayRows
    labels: NDArray[np.int64]
    test: ArrayRows


def run() -> None:
    """Measure every selected case, write results/networks.json and print a summary."""
    report: dict[str, Any] = {"machine": machine(), "epsilon": EPSILON, "delta": DELTA, "target": TARGET}
    selected = os.environ.get("BENCH_CASE")
    if selected:
        report |= _earlier_figures(report["machine"]["commit"])
    for case, images in ((MNIST, mnist), (CIFAR, cifar10)):
        if not selected or selected == case.name:
            report[case.name] = _measure_case(case, images())
            write(report)
    print_report(report)


def _measure_case(case: Case, images: Images) -> dict[str, Any]:
    seconds, figures = timed(lambda: measure(case, split(images, case)))
    return figures | {"seconds": seconds}


def _earlier_figures(commit: str | None) -> dict[str, Any]:
    """Return the figures of an earlier run of this very commit."""
    path = RESULTS / "networks.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    if commit is None or earlier.get("machine", {}).get("commit") != commit:
        return {}
    return {name: earlier[name] for name in (MNIST.name, CIFAR.name) if name in earlier}


def write(report: dict[str, Any]) -> None:
    """Write the report. It is called after each case, because the next one takes minutes."""
    report["bars"] = bars(report)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "networks.json").write_text(json.dumps(report, indent=2) + "\n")


def split(images: Images, case: Case) -> Split:
    """Split one fixed shuffle into public rows, then private rows."""
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
    """Return w as the service would release it: noised, on the public grid."""
    step = grid_step(sigma)
    return noise.on_grid(noise.noised(w, sigma=sigma, step=step), step).to(torch.float64)


def measure(case: Case, data: Split) -> dict[str, Any]:
    """Train, release, erase, unlearn, certify and compare with retraining."""
    anchor = fitted_anchor(case, data)
    trained = _fit(_objective(case, data.private, anchor), anchor)
    sigma = sigma_for(epsilon=EPSILON, delta=DELTA - FAILURE, distance=TARGET)
    published = released(trained.w, sigma)
    preparing, sketch = timed(
        lambda: build_sketch(_objective(case, data.private, anchor), published, rank=NETWORK_DIRECTIONS)
    )
    start = Start(anchor, published, sketch)
    sizes = [_erasure(case, data, start, case.erased // part) for part in (100, 10)]
    erasure = _erasure(case, data, start, case.erased)
    certified = certify_in_rounds(
        erasure.retained,
        case.spec,
        erasure.unlearned.w,
        target=TARGET,
        failure_probability=FAILURE,
        settings=SETTINGS,
        known=erasure.unlearned.evaluation,
        sketch=sketch,
    )
    truth = minimise(
        erasure.retained,
        erasure.retrained.w,
        target=TARGET * 1e-4,
        working_floor=case.lam / 4,
        settings=SETTINGS,
    )
    holdout = NetworkHoldout(_objective(case, data.test, anchor))
    return _describe(case, sigma) | {
        "train": _cost(trained),
        "by_erasure": [it.summary() for it in (*sizes, erasure)],
        "kl_retained_original": erasure.kl,
        "unlearn": _cost(erasure.unlearned),
        "without_sketch": _cost(erasure.without_sketch),
        "retrain": _cost(erasure.retrained),
        "preparation": {"seconds": preparing, "directions": 0 if sketch is None else len(sketch.values)},
        "passes_ratio": erasure.ratio,
        "certificate": _certificate(certified),
        "passes_ratio_with_certificate": (erasure.unlearned.passes + _bill(certified))
        / erasure.retrained.passes,
        "true_distance": float(torch.linalg.vector_norm(certified.w - truth.w)),
        "true_distance_before_tightening": float(torch.linalg.vector_norm(erasure.unlearned.w - truth.w)),
        "retrained_distance": float(torch.linalg.vector_norm(erasure.retrained.w - truth.w)),
        "reference": _cost(truth),
        "f1": _scores(holdout, anchor, published, certified.w, truth.w, sigma),
    }


@dataclass(frozen=True, slots=True)
class Start:
    """What every erasure of a case starts from."""

    anchor: Tensor  # (d,)
    published: Tensor  # (d,)
    sketch: CurvatureSketch | None


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """The same retained rows solved from the published version and from the anchor, to the same gradient."""

    rows: int
    kl: float
    gradients: tuple[float, float]  # ‖g‖ at the published version and at the anchor
    retained: NetworkObjective
    unlearned: Solution
    without_sketch: Solution
    retrained: Solution

    @property
    def ratio(self) -> float:
        """Passes of unlearning divided by those of retraining."""
        return self.unlearned.passes / self.retrained.passes

    def summary(self) -> dict[str, Any]:
        """Return the figures for the report."""
        passes = {
            "unlearn_passes": self.unlearned.passes,
            "passes_without_sketch": self.without_sketch.passes,
            "retrain_passes": self.retrained.passes,
        }
        return {"erased": self.rows, "start_gradients": self.gradients, **passes, "ratio": self.ratio}


def _erasure(case: Case, data: Split, start: Start, rows: int) -> ErasureResult:
    deletion = biased_deletion(data.labels, rows, seed=case.seed)
    retained = _objective(case, _without(data.private, data.labels, deletion.rows), start.anchor)
    return ErasureResult(
        rows,
        deletion.drift.kl_retained_original,
        (retained.evaluate(start.published).norm, retained.evaluate(start.anchor).norm),
        retained,
        unlearned=_fit(retained, start.published, start.sketch),
        without_sketch=_fit(retained, start.published),
        retrained=_fit(retained, start.anchor),
    )


def _describe(case: Case, sigma: float) -> dict[str, Any]:
    return {
        "network": str(case.spec),
        "dimension": dimension(case.spec),
        "lambda": case.lam,
        "rows": {"public": case.public, "private": case.private, "erased": case.erased},
        "pixels": {"side": case.side, "centre": case.centre},
        "sigma": sigma,
    }


def _bill(certified: RoundsResult) -> float:
    return certified.passes + sum(solve.passes for solve in certified.solves)


def fitted_anchor(case: Case, data: Split) -> Tensor:
    """Fit the anchor on public rows. It need not be a minimiser."""
    start = initial_point(case.spec, case.seed)
    if case.anchor_epochs:
        return stochastic_anchor(data.public, case.spec, start, epochs=case.anchor_epochs, seed=case.seed)
    objective = NetworkObjective(data.public, case.spec, case.anchor_lam, start)
    settings = replace(SETTINGS, max_steps=case.anchor_steps)
    return minimise(objective, start, target=1e-2, working_floor=case.anchor_lam, settings=settings).w


def _objective(case: Case, rows: ArrayRows, anchor: Tensor) -> NetworkObjective:
    return NetworkObjective(rows, case.spec, case.lam, anchor)


def _fit(objective: NetworkObjective, start: Tensor, sketch: CurvatureSketch | None = None) -> Solution:
    floor = objective.lam / 4
    return minimise(objective, start, target=TARGET, working_floor=floor, settings=SETTINGS, sketch=sketch)


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


def _certificate(certified: RoundsResult) -> dict[str, Any]:
    result = certified.kantorovich
    return {
        "verdict": str(result.verdict),
        "distance": result.distance,
        "gradient": result.gradient_norm + result.rounding,
        "rounding": result.rounding,
        "curvature_floor": result.floor,
        "hessian_lipschitz": result.lipschitz,
        "h": result.h,
        "route": result.curvature.route if result.curvature else None,
        "lanczos_steps": result.curvature.runs[-1].steps
        if result.curvature and result.curvature.runs
        else None,
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
    """Return micro-F1 in points. Noised models are averaged over draws."""

    def noised(w: Tensor) -> float:
        draws = [released(w, sigma) for _ in range(DRAWS)]
        return float(np.mean([100 * classification(holdout, draw).micro_f1 for draw in draws]))

    scores = {
        "anchor": 100 * classification(holdout, anchor).micro_f1,
        "published": 100 * classification(holdout, published).micro_f1,
        "unlearned": noised(unlearned),
        "retrained": noised(retrained),
    }
    return scores | {"delta": scores["retrained"] - scores["unlearned"]}


def bars(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of each case and whether they are met."""
    bars_by_name: dict[str, dict[str, Any]] = {}
    for name in (name for name in (MNIST.name, CIFAR.name) if name in report):
        case = report[name]
        certificate = case["certificate"]
        certified = certificate["verdict"].startswith("certified") and certificate["distance"] <= TARGET
        bars_by_name |= {
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
    return bars_by_name


def print_report(report: dict[str, Any]) -> None:
    """Print the targets as a table."""
    table = Table("", "measured", "target", "", title="Networks")
    for name, bar in report["bars"].items():
        table.add_row(
            name, f"{bar['measured']:.3g}", f"{bar['asked']:.3g}", "met" if bar["met"] else "missed"
        )
    Console().print(table)
