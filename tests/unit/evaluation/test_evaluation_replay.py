import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worker.engine.families import Softmax
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import minimise, train
from worker.evaluation.power import Alternative
from worker.evaluation.replay import FLOAT32_ROUNDOFF, Check, ReplayAudit, Verdict, audit, noise_estimate

SIGMA, TARGET = 3.7e-3, 1e-3  # about what ε = 1, δ = 1e-5 ask for
REPLAY = 2e-4


def normal(d: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(d))


class Scene:
    """A replay, a parent with its own noise, and the longest offset allowed in a direction."""

    def __init__(self, d: int, *, seed: int = 0, lean: float = 0.0) -> None:
        self.d = d
        self.replayed = normal(d, 10**6 + seed)
        self.parent = self.replayed + 5 * SIGMA * normal(d, 2 * 10**6 + seed)
        towards = (self.parent - self.replayed) / torch.linalg.vector_norm(self.parent - self.replayed)
        self.honest = self.replayed + lean * (TARGET + REPLAY) * towards

    def audit(self, published: Tensor, **options: object) -> ReplayAudit:
        numbers: dict[str, Any] = {"sigma": SIGMA, "target_distance": TARGET, "replay_distance": REPLAY}
        return audit(published, self.replayed, self.parent, **(numbers | options))


def power_of(result: ReplayAudit, alternative: Alternative) -> float:
    return next(power.power for power in result.powers if power.alternative == alternative)


def p_value_of(result: ReplayAudit, check: Check) -> float:
    return next(finding.p_value for finding in result.findings if finding.check == check)


@pytest.mark.parametrize("lean", [0.0, 1.0, -1.0])
def test_honest_releases_are_accused_no_more_often_than_the_level_says(lean: float) -> None:
    level, runs = 0.2, 150
    scene = Scene(30, lean=lean)
    earlier = normal(30, 99)
    accused = sum(
        scene.audit(scene.honest + SIGMA * normal(30, seed), level=level, earlier_noise=earlier).verdict
        == Verdict.INCONSISTENT
        for seed in range(runs)
    )
    assert accused <= runs * level + 3 * math.sqrt(runs * level * (1 - level))


@pytest.mark.parametrize("d", [1, 2, 650, 200_000])
def test_an_honest_release_passes_at_the_default_level_in_any_dimension(d: int) -> None:
    for lean in (0.0, 1.0):
        scene = Scene(d, seed=d, lean=lean)
        result = scene.audit(scene.honest + SIGMA * normal(d, 5), earlier_noise=normal(d, 6))
        assert result.verdict == Verdict.CONSISTENT, result
        assert 0.001 < result.p_value <= 1
        assert len(result.findings) == 4


DISHONEST: dict[Alternative, tuple[Callable[[Scene, Tensor], Tensor], Check]] = {
    Alternative.NO_NOISE: (lambda s, xi: s.honest, Check.NORM),
    Alternative.HALF_NOISE: (lambda s, xi: s.honest + SIGMA / 2 * xi, Check.NORM),
    Alternative.DOUBLE_NOISE: (lambda s, xi: s.honest + 2 * SIGMA * xi, Check.NORM),
    Alternative.NOT_MOVED: (lambda s, xi: s.parent + SIGMA * xi, Check.FORGETTING),
    Alternative.FLAT_NOISE: (
        lambda s, xi: s.honest + SIGMA * math.sqrt(3) * torch.erf(xi / math.sqrt(2)),
        Check.SHAPE,
    ),
}


@pytest.mark.parametrize("alternative", DISHONEST)
@pytest.mark.parametrize("lean", [0.0, 1.0])
@pytest.mark.parametrize("d", [20_000, 300_000])
def test_each_named_dishonesty_is_found_by_the_test_that_aims_at_it(alternative, lean, d) -> None:
    scene = Scene(d, seed=1, lean=lean)
    publish, check = DISHONEST[alternative]
    result = scene.audit(publish(scene, normal(d, 3)))
    assert result.verdict == Verdict.INCONSISTENT
    assert p_value_of(result, check) < 1e-6
    assert power_of(result, alternative) > 0.999
    assert str(check) in result.summary or p_value_of(result, check) == 0


@pytest.mark.parametrize("d", [2, 12])
@pytest.mark.parametrize("alternative", [Alternative.HALF_NOISE, Alternative.DOUBLE_NOISE])
def test_the_stated_power_is_what_happens_in_the_least_favourable_case(alternative, d) -> None:
    level, runs = 0.3, 160
    scene = Scene(d, seed=d, lean=1.0 if alternative == Alternative.HALF_NOISE else 0.0)
    publish, check = DISHONEST[alternative]
    results = [scene.audit(publish(scene, normal(d, seed)), level=level) for seed in range(runs)]
    by_the_test = np.mean([p_value_of(result, check) <= level / 3 for result in results])
    stated = power_of(results[0], alternative)
    spread = math.sqrt(stated * (1 - stated) / runs)
    assert by_the_test == pytest.approx(stated, abs=4 * spread + 0.03)  # the other tail finds a little too
    assert np.mean([result.verdict == Verdict.INCONSISTENT for result in results]) >= stated - 4 * spread


def test_the_stated_power_against_a_small_lean_is_what_happens() -> None:
    d, runs = 40, 160
    scene = Scene(d, seed=2)
    unit = (scene.parent - scene.replayed) / torch.linalg.vector_norm(scene.parent - scene.replayed)
    scene.parent = scene.replayed + 3.5 * SIGMA * unit
    results = [scene.audit(scene.parent + SIGMA * normal(d, seed)) for seed in range(runs)]
    detected = np.mean([p_value_of(result, Check.FORGETTING) <= 1e-3 / 3 for result in results])
    stated = power_of(results[0], Alternative.NOT_MOVED)
    assert 0.2 < stated < 0.8
    assert detected == pytest.approx(stated, abs=4 * math.sqrt(stated * (1 - stated) / runs))
    leaning = scene.replayed + results[0].detectable_shift * unit
    caught = [
        p_value_of(scene.audit(leaning + SIGMA * normal(d, seed)), Check.FORGETTING) <= 1e-3 / 3
        for seed in range(runs)
    ]
    assert np.mean(caught) == pytest.approx(0.9, abs=0.08)


def test_noise_used_twice_is_found_and_fresh_noise_is_not() -> None:
    d = 500
    earlier, later = Scene(d, seed=3), Scene(d, seed=4, lean=1.0)
    noise = normal(d, 5)
    estimate = noise_estimate(earlier.honest + SIGMA * noise, earlier.replayed, sigma=SIGMA)
    again = later.audit(later.honest + SIGMA * noise, earlier_noise=estimate)
    fresh = later.audit(later.honest + SIGMA * normal(d, 6), earlier_noise=estimate)
    assert p_value_of(again, Check.REPEAT) < 1e-50
    assert again.verdict == Verdict.INCONSISTENT
    assert power_of(again, Alternative.REPEATED_NOISE) == 1
    assert fresh.verdict == Verdict.CONSISTENT
    opposite = later.audit(later.honest - SIGMA * noise, earlier_noise=estimate)
    assert opposite.verdict == Verdict.INCONSISTENT


def test_one_parameter_is_too_few_to_judge_noise_and_the_audit_says_so() -> None:
    scene = Scene(1)
    result = scene.audit(scene.honest + SIGMA * normal(1, 1))
    assert result.verdict == Verdict.CONSISTENT
    assert power_of(result, Alternative.NO_NOISE) == 0
    assert "It may miss: no noise" in result.summary


def test_a_parent_already_at_the_minimum_leaves_no_direction_to_test() -> None:
    scene = Scene(300)
    scene.parent = scene.replayed.clone()
    result = scene.audit(scene.honest + SIGMA * normal(300, 1), earlier_noise=torch.zeros(300))
    assert [finding.check for finding in result.findings] == [Check.NORM, Check.SHAPE]
    assert result.detectable_shift is None
    assert Alternative.NOT_MOVED not in {power.alternative for power in result.powers}


def test_without_a_parent_the_other_tests_run_and_the_summary_says_what_was_not_looked_for() -> None:
    scene = Scene(5000, seed=9)
    numbers: dict[str, Any] = {"sigma": SIGMA, "target_distance": TARGET, "replay_distance": REPLAY}
    honest = audit(scene.honest + SIGMA * normal(5000, 1), scene.replayed, None, **numbers)
    bare = audit(scene.honest, scene.replayed, None, **numbers)
    assert [finding.check for finding in honest.findings] == [Check.NORM, Check.SHAPE]
    assert (honest.verdict, bare.verdict) == (Verdict.CONSISTENT, Verdict.INCONSISTENT)
    assert Alternative.NOT_MOVED not in {power.alternative for power in honest.powers}
    assert honest.detectable_shift is None
    assert "did not test for a model that stayed near its parent" in honest.summary
    with_parent = scene.audit(scene.honest + SIGMA * normal(5000, 1))
    assert "stayed near its parent" not in with_parent.summary
    flat = Alternative.FLAT_NOISE
    assert power_of(honest, flat) > power_of(with_parent, flat), "fewer tests share the level"


def test_noise_below_the_spacing_of_the_weights_accuses_nobody_and_claims_no_power() -> None:
    w = normal(50, 1)
    for sigma in (1e-17, 1e-200):
        result = audit(w, w, w, sigma=sigma, target_distance=0.0, replay_distance=0.0)
        assert result.verdict == Verdict.CONSISTENT
        assert max(power.power for power in result.powers) == 0
    with pytest.raises(ValueError, match="too small"):
        audit(w, w, w, sigma=1e-310, target_distance=1.0, replay_distance=0.0)


def test_an_overwhelming_difference_overflows_to_certainty() -> None:
    scene = Scene(50)
    far = audit(
        scene.replayed + 1e150 * scene.parent,
        scene.replayed,
        scene.parent,
        sigma=1e-12,
        target_distance=1e-13,
        replay_distance=0.0,
        unit_roundoff=0.0,
    )
    assert far.p_value == 0
    assert far.verdict == Verdict.INCONSISTENT


def test_storing_the_release_in_single_precision_raises_no_alarm() -> None:
    d, sigma = 100_000, 3e-7  # a few spacings of a float32 near 1
    replayed = 1 + normal(d, 1).abs()
    stored = (replayed + sigma * normal(d, 2)).to(torch.float32)
    numbers: dict[str, Any] = {"sigma": sigma, "target_distance": 1e-7, "replay_distance": 0.0}
    parent = replayed + 1e-3
    assert audit(stored, replayed, parent, **numbers).verdict == Verdict.INCONSISTENT
    rounded = audit(stored, replayed, parent, **numbers, unit_roundoff=FLOAT32_ROUNDOFF)
    assert rounded.verdict == Verdict.CONSISTENT


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": 0.0},
        {"sigma": math.nan},
        {"target_distance": -1.0},
        {"replay_distance": math.inf},
        {"level": 0.0},
        {"earlier_noise": torch.zeros(3)},
        {"earlier_noise": torch.full((4,), math.nan)},
    ],
)
def test_numbers_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    scene = Scene(4)
    with pytest.raises(ValueError, match=r"must be|vectors"):
        scene.audit(scene.honest, **change)


def test_a_real_erasure_passes_and_a_model_that_skipped_it_fails() -> None:
    rng = np.random.default_rng(8)
    features, labels = rng.standard_normal((1500, 10)), rng.integers(0, 3, 1500)
    features[:, 0] += labels
    keep = ~((labels == 0) & (rng.random(1500) < 0.8))
    whole = Softmax(ArrayRows(features, labels), 3, 1e-2)
    retained = Softmax(ArrayRows(features[keep], labels[keep]), 3, 1e-2)
    learned = train(whole, target=TARGET).w
    parent = learned + SIGMA * normal(len(learned), 1)
    unlearned = minimise(retained, parent, target=TARGET)
    replay = train(retained, target=TARGET / 10)
    numbers: dict[str, Any] = {
        "sigma": SIGMA,
        "target_distance": TARGET,
        "replay_distance": replay.distance,
    }
    fresh = SIGMA * normal(len(learned), 2)
    honest = audit(unlearned.w + fresh, replay.w, parent, **numbers)
    skipped = audit(learned + fresh, replay.w, parent, **numbers)
    assert honest.verdict == Verdict.CONSISTENT
    assert skipped.verdict == Verdict.INCONSISTENT
    assert "trusts the retained rows" in honest.summary
