"""Engine benchmark on MNIST: cost against retraining, tightness of the certificate, growth with the data.

Softmax regression, rows scaled to norm ≤ 1 with a constant feature, λ = 1e-4. Costs are in seconds and in
full passes (rows touched / rows), to a certified Δ ≤ 1e-2. One pass, the certified gradient, is the minimum.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor

from bench import prepared_erasures
from bench.datasets import mnist
from bench.measurement import RESULTS, full, machine, median, peak_memory, timed
from worker.engine.baselines import guo2020, tr_paper
from worker.engine.bounds import strongly_convex_distance
from worker.engine.families import Softmax
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Solution, SolverSettings, minimise, train

LAMBDA, TARGET, CLASSES = 1e-4, 1e-2, 10
SCALE = 17.25  # No row of pixels in [0, 1] with its constant feature is longer.
BIAS_OF_DELETION = {0: 99.0, 7: 99.0}
SEED = 20
MEMORIES = (10, 30)  # L-BFGS runs with the better one


@dataclass(frozen=True, slots=True)
class Data:
    """Features and labels of a classification problem."""

    features: NDArray[np.float32]  # (n, width), the constant feature included
    labels: NDArray[np.int64]  # (n,)

    def without(self, erased: NDArray[np.int64]) -> "Data":
        """Return the data without the rows at `erased`."""
        keep = np.ones(len(self.labels), dtype=bool)
        keep[erased] = False
        return Data(self.features[keep], self.labels[keep])

    def objective(self) -> Softmax:
        """Return a fresh objective, so that no run inherits the caches of another."""
        return Softmax(ArrayRows(self.features, self.labels), CLASSES, LAMBDA, bias=False)


def run() -> None:
    """Measure, print, and write results/engine.json."""
    repeats = 7 if full() else 3
    host = machine()
    digits = load_digits()
    trained = train(digits.objective(), target=TARGET)
    report: dict[str, Any] = {"machine": host, "seed": SEED, "repeats": repeats}
    for erased in (8000, 60):
        report[f"erase_{erased}"] = _erasure(digits, trained.w, erased, repeats)
    report["growth"] = _growth(digits)
    report["prepared"] = prepared_erasures.measure()
    report["bars"] = _bars(report)
    _print(report)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "engine.json").write_text(json.dumps(report, indent=2) + "\n")


def load_digits() -> Data:
    """Load MNIST with a constant feature, scaled to norm ≤ 1."""
    raw = mnist()
    pixels = raw.train_images.astype(np.float32) / np.float32(255)
    constant = np.ones((len(pixels), 1), dtype=np.float32)
    features = (np.hstack([pixels, constant]) / np.float32(SCALE)).astype(np.float32, copy=False)
    return Data(features, raw.train_labels.astype(np.int64))


def _biased(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    weights = np.ones(CLASSES)
    for label, weight in BIAS_OF_DELETION.items():
        weights[label] = weight
    chances = weights[labels] / weights[labels].sum()
    return np.random.default_rng(SEED).choice(len(labels), count, replace=False, p=chances)


def _erasure(digits: Data, start: Tensor, erased: int, repeats: int) -> dict[str, Any]:
    """Unlearn, retrain with our solver and retrain with L-BFGS, interleaved. Returns medians."""
    kept = digits.without(_biased(digits.labels, erased))
    runs: dict[str, list[tuple[float, float]]] = {"unlearn": [], "retrain": [], "floor": []}
    lbfgs: dict[int, list[tuple[float, float]]] = {memory: [] for memory in MEMORIES}
    for repeat in range(repeats):
        settings = SolverSettings(seed=SEED + 1000 * repeat)
        for memory in MEMORIES:
            lbfgs[memory].append(timed(partial(_lbfgs, kept, memory)))
        seconds, unlearned = timed(partial(_unlearn, kept, start, settings))
        runs["unlearn"].append((seconds, unlearned.passes))
        seconds, solution = timed(partial(_retrain, kept, settings))
        runs["retrain"].append((seconds, solution.passes))
        seconds, _ = timed(lambda: kept.objective().certified_gradient(start))
        runs["floor"].append((seconds, 1.0))
    best = min(MEMORIES, key=lambda memory: median([s for s, _ in lbfgs[memory]]))
    costs = {name: _median_cost(pairs) for name, pairs in runs.items()}
    costs["lbfgs"] = _median_cost(lbfgs[best]) | {"memory": best}
    return {"rows": len(kept.labels), "cost": costs} | _quality(kept, start, unlearned)


def _unlearn(kept: Data, start: Tensor, settings: SolverSettings) -> Solution:
    return minimise(kept.objective(), start, target=TARGET, settings=settings)


def _retrain(kept: Data, settings: SolverSettings) -> Solution:
    return train(kept.objective(), target=TARGET, settings=settings)


def _median_cost(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    seconds, passes = [s for s, _ in pairs], [p for _, p in pairs]
    return {
        "seconds": median(seconds),
        "passes": median(passes),
        "all_seconds": seconds,
        "all_passes": passes,
    }


class _Certified(Exception):
    """Raised to stop L-BFGS at the first certified evaluation."""


def _lbfgs(kept: Data, memory: int) -> float:
    """Return the passes that SciPy's L-BFGS-B takes from zero until an evaluation certifies the target."""
    objective, passes = kept.objective(), 0

    def evaluate(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal passes
        passes += 1
        here = objective.evaluate(torch.from_numpy(point))
        if _distance(here.norm, here.rounding) <= TARGET:
            raise _Certified
        return here.value, here.gradient.numpy()

    options = {"maxcor": memory, "maxiter": 10_000, "maxfun": 10_000, "ftol": 0.0, "gtol": 0.0, "maxls": 50}
    try:
        scipy_minimize(evaluate, np.zeros(objective.dimension), jac=True, method="L-BFGS-B", options=options)
    except _Certified:
        return float(passes)
    raise RuntimeError("L-BFGS did not reach the target")


def _distance(norm: float, rounding: float) -> float:
    return strongly_convex_distance(gradient_norm=norm, rounding=rounding, floor=LAMBDA)


def _quality(kept: Data, start: Tensor, unlearned: Solution) -> dict[str, Any]:
    """Return certified and true distances, and where the baselines end on the same data."""
    objective = kept.objective()
    # As far as rounding allows: the run ends when ‖g‖ falls below its error bound.
    exact = minimise(objective, unlearned.w, target=1e-12, settings=SolverSettings(max_steps=60))
    reference = exact.w

    def figures(w: Tensor) -> dict[str, float]:
        here = objective.certified_gradient(w)
        true = float(torch.linalg.vector_norm(w - reference))
        return {"certified": _distance(here.norm, here.rounding), "true": true}

    capped = tr_paper.unlearn(objective, start)
    ours = figures(unlearned.w)
    return {
        "reference_gradient_norm": exact.gradient_norm,
        "rounding": unlearned.rounding,
        "ours": ours | {"tightness": ours["certified"] / ours["true"]},
        "newton_step": figures(guo2020.newton_step(objective, start)),
        "capped_steps": figures(capped.w) | {"steps": float(len(capped.steps))},
        "paper_bound_before_run": capped.constants["corollary_1_all_steps"],
        "no_unlearning": figures(start),
    }


def _growth(digits: Data) -> list[dict[str, Any]]:
    """Train, erase 2 in 15 rows and unlearn. Returns time and memory per row."""
    order = np.random.default_rng(SEED).permutation(len(digits.labels))
    tables = []
    for count in (15_000, 30_000, 60_000):
        part = Data(digits.features[order[:count]], digits.labels[order[:count]])
        tables.append(("mnist", part, _biased(part.labels, count * 2 // 15)))
    synthetic = _synthetic(1_000_000, 99)
    erased = np.random.default_rng(SEED).choice(1_000_000, 1000, replace=False)
    tables.append(("synthetic", synthetic, erased))
    return [_growth_row(name, data, erased) for name, data, erased in tables]


def _growth_row(name: str, data: Data, erased: NDArray[np.int64]) -> dict[str, Any]:
    start = train(data.objective(), target=TARGET).w
    kept = data.without(erased)
    objective = kept.objective()
    memory, (seconds, solution) = peak_memory(
        lambda: timed(lambda: minimise(objective, start, target=TARGET))
    )
    rows, width = kept.features.shape
    return {
        "data": name,
        "rows": rows,
        "width": width,
        "outcome": solution.outcome.name,
        "passes": solution.passes,
        "seconds": seconds,
        "microseconds_per_row_and_pass": 1e6 * seconds / rows / solution.passes,
        "microseconds_per_row": 1e6 * seconds / rows,
        "peak_megabytes_beyond_source": memory and memory / 2**20,
        "source_megabytes": kept.features.nbytes / 2**20,
    }


def _synthetic(count: int, width: int) -> Data:
    rng = np.random.default_rng(SEED)
    features = np.empty((count, width + 1), dtype=np.float32)
    rng.standard_normal(out=features, dtype=np.float32)
    features[:, -1] = 1
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    logits = features @ rng.standard_normal((width + 1, CLASSES), dtype=np.float32) * 4
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return Data(features, labels.astype(np.int64))


def _bars(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    many, few = report["erase_8000"], report["erase_60"]

    def ratio(part: dict[str, Any], other: str) -> float:
        return float(part["cost"][other]["seconds"] / part["cost"]["unlearn"]["seconds"])

    measured = {
        "8,000 rows: passes": (many["cost"]["unlearn"]["passes"], "<=", 10),
        "8,000 rows: times faster than L-BFGS": (ratio(many, "lbfgs"), ">=", 5),
        "60 rows: passes": (few["cost"]["unlearn"]["passes"], "<=", 4),
        "60 rows: times faster than L-BFGS": (ratio(few, "lbfgs"), ">=", 20),
        "60 rows, no sketch: times faster than our retraining": (ratio(few, "retrain"), ">=", 3),
        "8,000 rows: certified / true distance": (many["ours"]["tightness"], "<=", 5),
        "60 rows: certified / true distance": (few["ours"]["tightness"], "<=", 5),
        **prepared_erasures.bars(report["prepared"]),
    }
    return {
        name: {
            "measured": value,
            "bar": f"{sign} {bar}",
            "met": value <= bar if sign == "<=" else value >= bar,
        }
        for name, (value, sign, bar) in measured.items()
    }


def _print(report: dict[str, Any]) -> None:
    console = Console()
    for erased in (8000, 60):
        part = report[f"erase_{erased}"]
        table = Table("", "seconds", "passes", title=f"{erased:,} of 60,000 rows erased, to Δ ≤ {TARGET:g}")
        for name, cost in part["cost"].items():
            table.add_row(name, f"{cost['seconds']:.3f}", f"{cost['passes']:.2f}")
        console.print(table)
        table = Table("distance to the retrained model", "certified (B1)", "true")
        for name in ("ours", "newton_step", "capped_steps", "no_unlearning"):
            table.add_row(name, f"{part[name]['certified']:.3g}", f"{part[name]['true']:.3g}")
        table.add_row("paper's bound before the run", f"{part['paper_bound_before_run']:.3g}", "")
        console.print(table)
    table = Table("data", "rows", "passes", "seconds", "µs/row", "peak MB", "source MB", title="growth")
    for row in report["growth"]:
        peak = row["peak_megabytes_beyond_source"]
        table.add_row(
            row["data"],
            f"{row['rows']:,}",
            f"{row['passes']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['microseconds_per_row']:.1f}",
            "?" if peak is None else f"{peak:.0f}",
            f"{row['source_megabytes']:.0f}",
        )
    console.print(table)
    console.print(_prepared_table(report["prepared"]))
    table = Table("bar", "measured", "asked", "met")
    for name, bar in report["bars"].items():
        table.add_row(name, f"{bar['measured']:.2f}", bar["bar"], "yes" if bar["met"] else "NO")
    console.print(table)


def _prepared_table(report: dict[str, Any]) -> Table:
    head = ("seconds (passes)", "with a sketch", "without", "retraining", "scikit-learn", "preparation")
    table = Table(*head, title="Erasures that find a curvature sketch")
    for name, figures in report["erasures"].items():
        cells = [
            f"{figures[run]['seconds']:.3f} ({figures[run]['passes']:.1f})"
            for run in ("unlearn", "without_sketch", "retrain")
        ]
        fitted = figures.get("sklearn")
        other = (
            ""
            if fitted is None
            else f"{fitted['seconds']:.1f}{'' if fitted['reached'] else ' (not reached)'}"
        )
        prepared = figures["preparation"]
        table.add_row(name, *cells, other, f"{prepared['seconds']:.1f} s, {prepared['bytes'] / 2**20:.0f} MB")
    return table
