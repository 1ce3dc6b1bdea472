"""The grid of λ and Δ*: what it recommends, and what its figures depend on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.db.manifest import Manifest
from worker.data.datasets import MemoryMapped
from worker.registration.advice_grid import Cell, Grid, Limits, lambdas_around, measure_grid

ENOUGH = Limits(seconds=600.0)
WIDTH = 8


def manifest(family: str = "softmax", lam: float = 0.01, **policy: Any) -> Manifest:
    return Manifest.model_validate(
        {
            "family": family,
            "width": WIDTH,
            "classes": 3 if family == "softmax" else None,
            "lambda": lam,
            "origins": {"features": "made up", "constants": "made up"},
            "policy": {"target_distance": 1e-3} | policy,
        }
    )


def made_up_rows(family: str = "softmax", count: int = 240) -> MemoryMapped:
    generator = np.random.default_rng(3)
    features = generator.normal(size=(count, WIDTH))
    if family == "ridge":
        return MemoryMapped(features, features @ np.arange(1.0, WIDTH + 1))
    classes = 3 if family == "softmax" else 2
    labels = generator.integers(0, classes, count)
    features[:, :classes] *= 0.4
    features[np.arange(count), labels] += 1
    return MemoryMapped(features, labels.astype(np.float64))


def measured(
    model: Manifest, rows: MemoryMapped | None = None, limits: Limits = ENOUGH, training: int | None = 1000
) -> Grid:
    rows = made_up_rows(model.family) if rows is None else rows
    grid = measure_grid(model, rows, None, training_rows=training, limits=limits)
    assert grid is not None
    return grid


def without_seconds(grid: Grid) -> list[Cell]:
    return [replace(cell, seconds=None) for cell in grid.cells]


@pytest.mark.parametrize("family", ["softmax", "logistic", "ridge"])
def test_every_combination_of_a_convex_family_is_measured(family: str) -> None:
    model = manifest(family)
    grid = measured(model)
    assert (grid.fit_rows, grid.score_rows) == (160, 80)
    assert len(grid.cells) == 4 * 3, "the manifest's target distance is one of the usual three"
    assert {cell.lam for cell in grid.cells} == {1e-4, 1e-3, 1e-2, 1e-1}
    for cell in grid.cells:
        assert cell.sigma == model.sigma_for(cell.target_distance)
        assert cell.score_name == ("r_squared" if family == "ridge" else "micro_f1")
        assert cell.reachable
        assert cell.passes is not None
        assert cell.passes >= 1
        assert cell.seconds is not None
        assert cell.seconds > 0


def test_the_noise_grows_with_the_target_distance_and_the_score_falls() -> None:
    grid = measured(manifest(target_distance=1.0))
    for lam in {cell.lam for cell in grid.cells}:
        cells = [cell for cell in grid.cells if cell.lam == lam]
        assert [cell.sigma for cell in cells] == sorted(cell.sigma for cell in cells)
        assert cells[-1].target_distance == 1.0
        assert cells[-1].score < cells[0].score - 0.1, "noise of this size drowns the weights"
    assert grid.recommended is not None
    assert grid.recommended.target_distance < 1.0


def test_the_better_lambda_is_recommended() -> None:
    """With λ = 1 and more, ridge hardly fits these targets at all."""
    grid = measured(manifest("ridge", lam=10.0))
    best = grid.recommended
    assert best is not None
    assert best.lam == 0.1
    assert best.score > 0.95
    assert max(cell.score for cell in grid.cells if cell.lam == 100.0) < 0.2
    recommendation = grid.recommendation()
    assert recommendation is not None
    assert (recommendation["lambda"], recommendation["target_distance"]) == (0.1, best.target_distance)
    assert "R² of 0.9" in recommendation["reason"]


def test_the_figures_are_the_same_each_time_and_training_rows_change_the_seconds_alone() -> None:
    model = manifest()
    one, two, none = (measured(model, training=rows) for rows in (1000, 50_000, None))
    assert without_seconds(one) == without_seconds(two) == without_seconds(none)
    assert one.recommendation() == two.recommendation() == none.recommendation()
    assert all(cell.seconds is None for cell in none.cells)


def cell(score: float, passes: float | None, *, lam: float = 0.1, reachable: bool = True) -> Cell:
    return Cell(lam, 1e-3, 3.7e-3, score, "micro_f1", reachable, passes)


@pytest.mark.parametrize(
    ("cells", "chosen"),
    [
        ([cell(0.900, 5), cell(0.902, 50)], 1),  # 0.2 points are worth the passes
        ([cell(0.9013, 5), cell(0.902, 50)], 0),  # 0.07 points are not
        ([cell(0.901, 5), cell(0.902, 50)], 0),  # exactly 0.1 points are not either
        ([cell(0.902, None), cell(0.9015, 50)], 1),  # passes that were not counted may be many
        ([cell(0.95, 5, reachable=False), cell(0.9, 5)], 1),  # what cannot be certified is of no use
    ],
)
def test_of_nearly_equal_scores_the_fewest_passes_win(cells: list[Cell], chosen: int) -> None:
    grid = Grid(100, 50, 1000, tuple(cells))
    assert grid.recommended is cells[chosen]
    recommendation = grid.recommendation()
    assert recommendation is not None
    within = cells[chosen].score < max(c.score for c in cells if c.reachable)
    assert ("within 0.1 points" in recommendation["reason"]) == within


def test_without_a_combination_that_can_be_certified_nothing_is_recommended() -> None:
    grid = Grid(100, 50, 1000, (cell(0.9, None, reachable=False),))
    assert grid.recommendation() is None
    assert any("No combination can be certified" in text for text in grid.warnings())


def test_a_target_below_the_rounding_errors_is_marked_as_out_of_reach() -> None:
    grid = measured(manifest(target_distance=1e-15))
    assert [c.target_distance for c in grid.cells if not c.reachable][:1] == [1e-15]
    assert all(c.passes is None for c in grid.cells if not c.reachable)
    assert grid.recommended is not None
    assert grid.recommended.target_distance > 1e-15


def test_what_there_was_no_time_for_is_stated() -> None:
    grid = measured(manifest(), limits=Limits(seconds=1e-9))
    assert (grid.cells, grid.skipped_lambdas, grid.recommendation()) == ((), 4, None)
    assert any("4 of the values of lambda are missing" in text for text in grid.warnings())


def test_a_cancelled_measurement_keeps_what_it_has_and_states_what_is_missing() -> None:
    shares: list[float] = []
    grid = measured(
        manifest(), limits=Limits(600.0, on_progress=shares.append, cancelled=lambda: len(shares) >= 4)
    )
    assert len(grid.cells) == 12
    assert all(cell.passes is None for cell in grid.cells)
    assert any("not counted for 12 of the combinations" in text for text in grid.warnings())
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1


@pytest.mark.parametrize(
    ("model", "rows", "limits"),
    [
        (manifest(), made_up_rows(count=29), ENOUGH),
        (manifest(method="guo2020"), made_up_rows(), ENOUGH),
        (manifest(), made_up_rows(), Limits(seconds=0.0)),
    ],
    ids=["too few rows", "a baseline", "switched off"],
)
def test_there_is_no_grid_where_it_would_mean_nothing(
    model: Manifest, rows: MemoryMapped, limits: Limits
) -> None:
    assert measure_grid(model, rows, None, training_rows=1, limits=limits) is None


def test_retraining_is_counted_from_the_anchor() -> None:
    """From there, the noise of the published version does not matter."""
    retrained, unlearned = measured(manifest(method="retrain")), measured(manifest())
    pairs = list(zip(retrained.cells, unlearned.cells, strict=True))
    assert all(one.score == other.score for one, other in pairs)
    assert any(one.passes != other.passes for one, other in pairs)


def test_the_manifests_own_lambda_is_always_tried() -> None:
    for lam in (1e-12, 0.05, 1e6):
        tried = lambdas_around(lam)
        assert lam in tried
        assert tried == sorted(set(tried), reverse=True)
        assert max(tried) <= 1e6
