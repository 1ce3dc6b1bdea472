"""The score and the cost to expect over a small grid of λ and Δ*, measured on holdout rows alone.

One part of the rows is fitted, once for each λ. The rest scores the fit after noise of the σ that each Δ*
implies. The cost of an erasure is that of a rehearsal: a few of the fitted rows are left out, and the solver
starts from the noised weights. Nothing is released, so the noise is pseudo-random and the same for all
combinations. Their scores therefore differ by λ and σ, and not by luck.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from app.db.manifest import Manifest
from worker.data.datasets import MemoryMapped, row_bytes
from worker.data.families import FamilyObjective, Place, family_of
from worker.engine.bounds import reachable
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Outcome, Solution, SolverSettings
from worker.evaluation.utility import Holdout, classification, holdout_of, regression
from worker.fitting import fit, noise_problem

ScoreName = Literal["micro_f1", "r_squared"]

LAMBDA_FACTORS = (0.01, 0.1, 1.0, 10.0)  # times the manifest's λ
SMALLEST_LAMBDA, LARGEST_LAMBDA = 1e-8, 1e6
TARGETS = (1e-4, 1e-3, 1e-2)  # and the manifest's Δ*
LEAST_ROWS = 30  # a score on fewer than ten rows says nothing
MOST_BYTES = 256 << 20  # of rows in memory
FIT_SHARE = 2 / 3
ERASED_SHARE = 0.01
DRAWS = 5
TOLERANCE = 1e-3  # 0.1 points of F1: less than this is not worth more passes
_SEED = 20_000
_UNUSABLE = (Outcome.TIME_EXHAUSTED, Outcome.CANCELLED, Outcome.NON_FINITE)


@dataclass(frozen=True)
class Limits:
    """How long the measurement may take, and whom it informs.

    `on_progress` receives the share that is done. `cancelled` is asked often.
    """

    seconds: float
    on_progress: Callable[[float], None] = lambda _: None
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Cell:
    """One combination of λ and Δ*, with the score to expect and the cost of an erasure."""

    lam: float
    target_distance: float
    sigma: float
    score: float
    score_name: ScoreName
    reachable: bool
    """Whether Δ* can be certified at this λ: rounding errors and the grid of the noise leave room for it."""
    passes: float | None = None
    seconds: float | None = None

    def to_report(self) -> dict[str, Any]:
        """Return the figures under their public names."""
        return {
            "lambda": self.lam,
            "target_distance": self.target_distance,
            "sigma": self.sigma,
            "score": self.score,
            "score_name": self.score_name,
            "passes": self.passes,
            "seconds": self.seconds,
            "reachable": self.reachable,
        }


@dataclass(frozen=True)
class Grid:
    """The measured combinations, on how many rows, and which of them to choose."""

    fit_rows: int
    score_rows: int
    training_rows: int | None
    cells: tuple[Cell, ...]
    skipped_lambdas: int = 0
    """How many values of λ there was no time for."""
    seconds: float = math.inf

    @property
    def recommended(self) -> Cell | None:
        """The cheapest of the combinations whose score is within the tolerance of the best one."""
        usable = [cell for cell in self.cells if cell.reachable]
        if not usable:
            return None
        best = max(cell.score for cell in usable)
        near = [cell for cell in usable if cell.score >= best - TOLERANCE * (1 + 1e-9)]
        return min(near, key=lambda cell: (_or_infinity(cell.passes), -cell.score, cell.target_distance))

    def recommendation(self) -> dict[str, Any] | None:
        """Return the recommended combination with the reason in a sentence, or None if there is none."""
        cell = self.recommended
        if cell is None:
            return None
        best = max((other for other in self.cells if other.reachable), key=lambda other: other.score)
        score, most = (_score_text(c.score, c.score_name) for c in (cell, best))
        passes = "" if cell.passes is None else f", and an erasure takes about {cell.passes:.0f} passes"
        reason = f"Its expected {score} is the highest{passes}."
        if cell.score < best.score:
            margin = "0.1 points" if cell.score_name == "micro_f1" else f"{TOLERANCE:g}"
            reason = (
                f"Its expected {score} is within {margin} of the highest ({most}), and of the combinations "
                f"that close it takes the fewest passes per erasure ({_or_infinity(cell.passes):.0f})."
            )
        return {"lambda": cell.lam, "target_distance": cell.target_distance, "reason": reason}

    def warnings(self) -> list[str]:
        """Return what to bear in mind about these figures, as sentences."""
        uncounted = sum(cell.reachable and cell.passes is None for cell in self.cells)
        limit = f"The time limit of {self.seconds:g} seconds was reached, so"
        texts = {
            f"The scores come from models fitted on {self.fit_rows} holdout rows. The model itself is fitted "
            "on more rows: it usually scores higher, and a smaller lambda may suit it better.": (
                self.training_rows is None or self.training_rows > self.fit_rows
            ),
            f"With {self.score_rows} rows to score on, differences of less than about {self._chance():.1f} "
            "points of F1 can be chance.": bool(self.cells) and self.cells[0].score_name == "micro_f1",
            f"{limit} {self.skipped_lambdas} of the values of lambda are missing.": self.skipped_lambdas > 0,
            f"{limit} the passes were not counted for {uncounted} of the combinations.": uncounted > 0,
            "No combination can be certified: rounding errors alone may exceed each target_distance. Try a "
            "larger lambda or target_distance.": bool(self.cells) and self.recommended is None,
        }
        return [sentence for sentence, applies in texts.items() if applies]

    def _chance(self) -> float:
        """Return the standard error of the best F1, in points."""
        share = max((cell.score for cell in self.cells), default=0.0)
        return 100 * math.sqrt(max(share * (1 - share), 1 / self.score_rows) / self.score_rows)


def measure_grid(
    manifest: Manifest,
    rows: MemoryMapped,
    anchor: Tensor | None,
    *,
    training_rows: int | None,
    limits: Limits,
    device: torch.device | str = "cpu",
) -> Grid | None:
    """Measure every combination on these rows, within the limits.

    Returns None if there are too few rows, or if Δ* does not decide the noise and the cost: for networks,
    baselines and plug-ins. `training_rows` scales the seconds and affects nothing else.
    """
    if len(rows.labels) < LEAST_ROWS or manifest.rule not in ("B1", "retrain") or not limits.seconds > 0:
        return None
    fitted, scored = _split(rows)
    problem = _Problem(manifest, anchor, fitted, device)
    holdout = holdout_of(problem.objective(scored, manifest.lam))
    if holdout is None or not problem.objective(scored, manifest.lam).curvature_floor > 0:
        return None
    run = _Run(problem, _scorer(manifest, holdout), training_rows, limits)
    cells, skipped = run.score_lambdas()
    return Grid(
        fit_rows=len(fitted.labels),
        score_rows=len(scored.labels),
        training_rows=training_rows,
        cells=tuple(sorted(run.count_passes(cells), key=lambda cell: (cell.lam, cell.target_distance))),
        skipped_lambdas=skipped,
        seconds=limits.seconds,
    )


def lambdas_around(lam: float) -> list[float]:
    """Return the values of λ to try, largest first.

    >>> lambdas_around(0.05), lambdas_around(1e-8)
    ([0.5, 0.05, 0.005, 0.0005], [1e-07, 1e-08])
    """
    tried = {min(max(lam * factor, SMALLEST_LAMBDA), LARGEST_LAMBDA) for factor in LAMBDA_FACTORS}
    return sorted({float(f"{value:.6g}") for value in tried if value != lam} | {lam}, reverse=True)


@dataclass(frozen=True)
class _Problem:
    """The model and the holdout rows that it is fitted on."""

    manifest: Manifest
    anchor: Tensor | None
    fitted: MemoryMapped
    device: torch.device | str

    @property
    def targets(self) -> list[float]:
        """The values of Δ* to try, in rising order."""
        return sorted({*TARGETS, self.manifest.policy.target_distance})

    def objective(self, rows: MemoryMapped, lam: float) -> FamilyObjective:
        """Build the objective on these rows, with another λ."""
        manifest = self.manifest.model_copy(update={"lam": lam})
        array = ArrayRows(rows.features, rows.labels)
        return family_of(manifest).objective_at(manifest, array, self.anchor, Place(self.device))

    def retained(self) -> MemoryMapped:
        """Return the fitted rows without those of the rehearsed erasure. The rows are in random order."""
        erased = max(1, round(ERASED_SHARE * len(self.fitted.labels)))
        return MemoryMapped(self.fitted.features[erased:], self.fitted.labels[erased:])


@dataclass
class _Run:
    """One measurement under way: its deadline, its progress, and the fit for each λ."""

    problem: _Problem
    score: Callable[[Tensor], float | None]
    training_rows: int | None
    limits: Limits
    started: float = field(default_factory=time.monotonic)
    fits: dict[float, Tensor] = field(default_factory=dict)
    _row_seconds: list[float] = field(default_factory=list)
    """Seconds per pass and row of every solve."""
    _done: int = 0

    def score_lambdas(self) -> tuple[list[Cell], int]:
        """Fit the model for each λ and score it for each Δ*. Also return how many λ were skipped.

        Each fit starts from that of the next larger λ, which is near.
        """
        problem, lambdas = self.problem, lambdas_around(self.problem.manifest.lam)
        cells: list[Cell] = []
        start: Tensor | None = None
        for index, lam in enumerate(lambdas):
            objective = problem.objective(problem.fitted, lam)
            solution = self._solve(
                objective, objective.anchor if start is None else start, problem.targets[0]
            )
            if solution is None or solution.outcome in _UNUSABLE:
                return cells, len(lambdas) - index
            self.fits[lam] = start = solution.w
            cells += self._score_targets(lam, objective.curvature_floor, solution)
            self._advance()
        return cells, 0

    def count_passes(self, cells: Sequence[Cell]) -> list[Cell]:
        """Rehearse an erasure for each combination, the best scores first, while there is time."""
        retained = self.problem.retained()
        counted = []
        for cell in sorted(cells, key=lambda cell: (-cell.score, cell.lam, cell.target_distance)):
            counted.append(self._rehearse(cell, retained) if cell.reachable else cell)
            self._advance()
        return [replace(cell, seconds=self._expected_seconds(cell.passes)) for cell in counted]

    def _score_targets(self, lam: float, floor: float, solution: Solution) -> list[Cell]:
        manifest = self.problem.manifest
        name: ScoreName = "r_squared" if family_of(manifest).classes(manifest) is None else "micro_f1"
        cells = []
        for target in self.problem.targets:
            sigma = manifest.sigma_for(target)
            score = self._mean_score(solution.w, sigma)
            if score is not None:
                certifiable = reachable(target=target, rounding=solution.rounding, floor=floor)
                fits_grid = noise_problem(solution.w, sigma) is None
                cells.append(Cell(lam, target, sigma, round(score, 4), name, certifiable and fits_grid))
        return cells

    def _mean_score(self, w: Tensor, sigma: float) -> float | None:
        scores = [self.score(w + sigma * z) for z in _draws(w)]
        numbers = [score for score in scores if score is not None]
        return sum(numbers) / DRAWS if len(numbers) == DRAWS else None

    def _rehearse(self, cell: Cell, retained: MemoryMapped) -> Cell:
        """Return the cell with the passes and seconds of an erasure, or unchanged if the time is up."""
        objective = self.problem.objective(retained, cell.lam)
        w = self.fits[cell.lam]
        published = w + cell.sigma * _draws(w)[0]
        start = objective.anchor if self.problem.manifest.rule == "retrain" else published
        solution = self._solve(objective, start, cell.target_distance)
        if solution is None or solution.outcome in _UNUSABLE:
            return cell
        if solution.outcome != Outcome.CERTIFIED:
            return replace(cell, reachable=False)
        return replace(cell, passes=round(solution.passes, 1))

    def _expected_seconds(self, passes: float | None) -> float | None:
        """Return the seconds for so many passes over the training rows, to two digits.

        The typical pace of all solves is more reliable than that of one short solve.
        """
        if passes is None or self.training_rows is None:
            return None
        return float(f"{passes * median(self._row_seconds) * self.training_rows:.1e}")

    def _solve(self, objective: FamilyObjective, start: Tensor, target: float) -> Solution | None:
        """Solve within the time that is left. Return None if there is none."""
        left = self.started + self.limits.seconds - time.monotonic()
        if left <= 0 or self.limits.cancelled():
            return None
        settings = SolverSettings(max_seconds=left)
        solution = fit(objective, start, target=target, settings=settings, cancelled=self.limits.cancelled)
        self._row_seconds.append(solution.seconds / (solution.passes * objective.rows.count))
        return solution

    def _advance(self) -> None:
        self._done += 1
        lambdas = len(lambdas_around(self.problem.manifest.lam))
        self.limits.on_progress(min(1.0, self._done / (lambdas * (1 + len(self.problem.targets)))))


def _split(rows: MemoryMapped) -> tuple[MemoryMapped, MemoryMapped]:
    """Return rows to fit and rows to score, in an order that depends on their number alone."""
    width = rows.features.shape[1]
    most = max(LEAST_ROWS, MOST_BYTES // row_bytes(width))
    order = np.random.default_rng(_SEED).permutation(len(rows.labels))[:most]
    border = round(FIT_SHARE * len(order))
    fitted, scored = (
        MemoryMapped(np.asarray(rows.features[picks]), np.asarray(rows.labels[picks]))
        for picks in (order[:border], order[border:])
    )
    return fitted, scored


def _scorer(manifest: Manifest, holdout: Holdout) -> Callable[[Tensor], float | None]:
    """Return a function that scores weights, or returns None where the score is not defined."""
    real = family_of(manifest).classes(manifest) is None

    def score(w: Tensor) -> float | None:
        try:
            return regression(holdout, w).r_squared if real else classification(holdout, w).micro_f1
        except ValueError:  # the outputs are not finite
            return None

    return score


def _draws(w: Tensor) -> list[Tensor]:
    """Return standard normals shaped like `w`, always the same ones. This is not noise for a release."""
    generator = torch.Generator().manual_seed(_SEED)
    return [
        torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.device, w.dtype)
        for _ in range(DRAWS)
    ]


def _score_text(score: float, name: ScoreName) -> str:
    return f"F1 of {100 * score:.1f} %" if name == "micro_f1" else f"R² of {score:.3f}"


def _or_infinity(passes: float | None) -> float:
    return math.inf if passes is None else passes
