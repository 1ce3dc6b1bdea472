"""The stored direction towards the parent: what an audit detects with it, and what it does not reveal."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lethe.certificate.evidence import EvidenceRecord, ReplayDirection, commit
from tests.unit.certificate.certificate_evidence_cases import evidence_for, uuid7
from worker.evaluation import tails
from worker.evaluation.direction import BUCKETS, NOISE, Projection, project_parent, recover_direction
from worker.evaluation.power import Alternative
from worker.evaluation.replay import Check, ReplayAudit, Verdict, audit
from worker.evaluation.tails import Slack

SIGMA, TARGET, REPLAY = 3.7e-3, 1e-3, 1e-4
NUMBERS: dict[str, Any] = {"sigma": SIGMA, "target_distance": TARGET, "replay_distance": REPLAY}
GRID = 2.0 ** math.floor(math.log2(SIGMA / 8))


@pytest.fixture(autouse=True)
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the record's noise from the operating system by a fixed stream."""
    stream = random.Random(0)
    monkeypatch.setattr(random, "SystemRandom", lambda: stream)


def normal(d: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(d))


def on_grid(w: Tensor) -> Tensor:
    return torch.round(w / GRID) * GRID


def audited(
    published: Tensor, replayed: Tensor, parent: Tensor, seed: int = 1, **options: float
) -> ReplayAudit:
    identity = uuid7(seed)
    record = project_parent(certificate_id=identity, parent=parent, sigma=SIGMA)
    assert record is not None
    lean = recover_direction(record, certificate_id=identity, replayed=replayed, sigma=SIGMA)
    return audit(published, replayed, lean, **(NUMBERS | options))


def p_value_of(result: ReplayAudit, check: Check) -> float:
    return next(finding.p_value for finding in result.findings if finding.check == check)


@pytest.mark.parametrize("d", [1, 3, 1020, 1021, 1022, 7850])
def test_the_projection_has_orthonormal_rows_and_lifts_by_its_transpose(d: int) -> None:
    projection = Projection(uuid7(1), d)
    dense = np.array([projection.lift(row) for row in np.eye(projection.size)])  # (k, d)
    assert np.allclose(dense @ dense.T, np.eye(min(d, BUCKETS)))
    v = np.random.default_rng(0).standard_normal(d)
    assert np.allclose(projection.apply(v), dense @ v)
    other = Projection(uuid7(2), d)
    assert d < 20 or not np.array_equal(projection.apply(v), other.apply(v))


def test_the_projection_keeps_its_share_of_any_vector_however_it_is_concentrated() -> None:
    d = 20 * BUCKETS
    row = np.zeros(d)
    row[:784] = 1.0  # one class's weights
    stride = np.zeros(d)
    stride[::784] = 1.0
    for v in (np.ones(d), row, stride):
        kept = [np.sum(Projection(uuid7(i), d).apply(v) ** 2) / np.sum(v**2) for i in range(200)]
        assert np.mean(kept) == pytest.approx(1 / 20, rel=0.15)


@pytest.mark.parametrize("d", [60, 650, 7850, 100_000])
@pytest.mark.parametrize("rounded", [False, True])
def test_a_model_that_stayed_at_a_noised_parent_is_found_in_any_dimension(d: int, rounded: bool) -> None:
    """The parent is an earlier release, so its noise alone moves every coordinate by about σ."""
    replayed = normal(d, 10)
    parent = (
        replayed + (TARGET / math.sqrt(d)) * normal(d, 11) + (3 if d < 100 else 1) * SIGMA * normal(d, 12)
    )
    published = parent + SIGMA * normal(d, 13)
    if rounded:
        result = audited(on_grid(published), replayed, on_grid(parent), grid_step=GRID)
    else:
        result = audited(published, replayed, parent)
    assert result.verdict == Verdict.INCONSISTENT
    assert p_value_of(result, Check.FORGETTING) < 1e-3 / 3
    assert result.detectable_shift is not None
    power = next(p.power for p in result.powers if p.alternative == Alternative.NOT_MOVED)
    assert d < 1000 or power > 0.9


def test_a_model_that_stayed_at_an_unnoised_first_version_is_found_when_that_is_far() -> None:
    d = 7850
    replayed = normal(d, 20)
    away = normal(d, 21)
    parent = replayed + 60 * SIGMA * away / torch.linalg.vector_norm(away)
    unmoved = audited(parent + SIGMA * normal(d, 22), replayed, parent)
    assert p_value_of(unmoved, Check.FORGETTING) < 1e-6
    near = replayed + 0.5 * SIGMA * away / torch.linalg.vector_norm(away)
    missed = audited(near + SIGMA * normal(d, 22), replayed, near)
    assert missed.verdict == Verdict.CONSISTENT
    assert "a model that did not move" in missed.summary.split("It may miss")[1]


def test_the_stated_reach_is_a_lower_bound_nineteen_times_in_twenty() -> None:
    d, runs, below = 5000, 200, 0
    replayed = normal(d, 30)
    parent = replayed + SIGMA * normal(d, 31)
    for run in range(runs):
        record = project_parent(certificate_id=uuid7(run), parent=parent, sigma=SIGMA)
        assert record is not None
        lean = recover_direction(record, certificate_id=uuid7(run), replayed=replayed, sigma=SIGMA)
        assert lean is not None
        unit = lean.direction / torch.linalg.vector_norm(lean.direction)
        below += float(unit @ (parent - replayed)) >= lean.reach
    assert below / runs >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("d", [30, 2000])
def test_honest_releases_are_accused_no_more_often_than_the_level_says(d: int, rounded: bool) -> None:
    level, runs = 0.2, 200
    replayed, accused = normal(d, 40), 0
    parent = replayed + 5 * SIGMA * normal(d, 41)
    solved = replayed + (TARGET + REPLAY) * (parent - replayed) / torch.linalg.vector_norm(parent - replayed)
    for run in range(runs):
        published = solved + SIGMA * normal(d, 1000 + run)
        published = on_grid(published) if rounded else published
        grid = GRID if rounded else 0.0
        result = audited(published, replayed, parent, seed=run, level=level, grid_step=grid)
        accused += result.verdict == Verdict.INCONSISTENT
    assert accused <= runs * level + 3 * math.sqrt(runs * level * (1 - level))


@pytest.mark.parametrize("offset", [0.0, 0.013, 0.0625])
def test_the_tail_on_a_grid_holds_for_a_single_coordinate_where_the_lattice_is_coarsest(
    offset: float,
) -> None:
    """Sum the distribution of a rounded normal exactly: no component exceeds its bound."""
    for step in (1 / 8, 1 / 2):
        slack = Slack(dimension=1, allowance=0.0, rounding=0.0, rounding_each=0.0, grid=step)
        places = step * np.arange(-200, 201) - offset
        edges = np.array(
            [math.erf((place - step / 2) / math.sqrt(2)) for place in [*places, places[-1] + step]]
        )
        masses = np.diff(edges) / 2
        for size in np.linspace(0, 6, 61):
            exact = float(masses[np.abs(places) >= size].sum())
            assert exact <= tails.along(size, slack) * (1 + 1e-9) + 1e-15


def test_uniform_noise_is_told_from_gaussian_noise_on_the_grid_too() -> None:
    d = 20_000
    replayed = normal(d, 50)
    parent = replayed + SIGMA * normal(d, 51)
    flat = SIGMA * math.sqrt(3) * torch.erf(normal(d, 52) / math.sqrt(2))
    result = audited(on_grid(replayed + flat), replayed, parent, grid_step=GRID)
    assert p_value_of(result, Check.SHAPE) < 1e-6
    honest = audited(on_grid(replayed + SIGMA * normal(d, 53)), replayed, parent, grid_step=GRID)
    assert honest.verdict == Verdict.CONSISTENT


def test_a_grid_coarser_than_the_noise_is_refused() -> None:
    w = normal(10, 1)
    with pytest.raises(ValueError, match="at most σ/2"):
        audit(w, w, None, grid_step=SIGMA, **NUMBERS)


@pytest.mark.parametrize("d", [4, 1021, 7850])
def test_the_record_tells_no_coordinate_of_the_parent_within_sigma(d: int) -> None:
    """The reader of the record knows the parent's size and all signs.

    The least-squares reading Pᵀx misses by at least NOISE·σ along each of the k directions, and knows nothing
    in the d - k others; so the error per coordinate is never below σ, in any dimension.
    """
    errors = []
    for seed in range(40 if d < 100 else 5):
        parent = normal(d, 60 + seed)
        record = project_parent(certificate_id=uuid7(seed), parent=parent, sigma=SIGMA)
        assert record is not None
        x = np.array(record.values) * record.step
        projection = Projection(uuid7(seed), d)
        read = projection.lift(x)
        along = x - projection.apply(parent.numpy())
        assert d < 100 or np.std(along) >= 0.85 * NOISE * SIGMA
        errors.append(np.mean((read - parent.numpy()) ** 2))
    assert math.sqrt(np.mean(errors)) > 1.5 * SIGMA


def test_the_record_depends_on_the_parent_alone_and_so_adds_nothing_about_the_solved_point() -> None:
    """The solved point does not enter the record: no argument carries it, and two draws of noise differ."""
    parent = normal(700, 70)
    first, again = (project_parent(certificate_id=uuid7(3), parent=parent, sigma=SIGMA) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.values != again.values, "the noise is fresh"
    gap = (np.array(first.values) - np.array(again.values)) * first.step
    assert np.std(gap) == pytest.approx(math.sqrt(2) * NOISE * SIGMA, rel=0.15)
    assert math.log2(first.step).is_integer()


def test_weights_beyond_the_records_range_leave_no_direction() -> None:
    assert project_parent(certificate_id=uuid7(1), parent=torch.full((5,), 1e9), sigma=1e-9) is None
    assert project_parent(certificate_id=uuid7(1), parent=torch.full((5,), math.nan), sigma=1.0) is None


def test_a_record_of_another_dimension_is_not_used() -> None:
    record = project_parent(certificate_id=uuid7(1), parent=normal(600, 1), sigma=SIGMA)
    assert record is not None
    for d in (599, 601, 5):
        assert recover_direction(record, certificate_id=uuid7(1), replayed=normal(d, 2), sigma=SIGMA) is None


def test_a_record_without_a_direction_has_the_bytes_it_always_had() -> None:
    plain = evidence_for("tr-proved", uuid7(1))
    assert b"replay" not in plain.to_bytes()
    record = ReplayDirection(dimension=3, noise=0.1, step=0.0078125, values=(1, -2, 3))
    with_one = plain.model_copy(update={"replay": record})
    assert EvidenceRecord.read(with_one.to_bytes(), "evidence") == with_one
    assert EvidenceRecord.read(plain.to_bytes(), "evidence").to_bytes() == plain.to_bytes()
    assert commit(plain) != commit(with_one)
