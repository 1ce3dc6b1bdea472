"""The replay audit: does a published model look like retraining on R plus the noise it was certified with?

Inside the organisation, with R at hand, retrain to ŵ_R and look at z = (published - ŵ_R)/σ. An honest release
is ξ + s with ξ standard normal and ‖s‖ ≤ (Δ* + Δ_replay)/σ: Δ* for where the release stopped, Δ_replay for
where the replay did. Neither ŵ_R nor the parent depends on ξ. The audit trusts the R it is given.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from scipy import special
from torch import Tensor

from worker.evaluation import tails
from worker.evaluation.direction import Lean
from worker.evaluation.power import Power, Situation, detectable_shift, powers
from worker.evaluation.tails import Slack

FLOAT64_ROUNDOFF = 2.0**-53
FLOAT32_ROUNDOFF = 2.0**-24
_DITHER = 1  # any fixed seed: the dither must be independent of the noise, not secret


class Verdict(StrEnum):
    CONSISTENT = "consistent with an honest release"
    INCONSISTENT = "not consistent with an honest release"


class Check(StrEnum):
    NORM = "length of the noise"
    SHAPE = "shape of the noise"
    FORGETTING = "lean towards the parent"
    REPEAT = "likeness to earlier noise"


@dataclass(frozen=True, slots=True)
class Finding:
    """`statistic`: ‖z‖/√d, the Kolmogorov–Smirnov distance, or ⟨u, z⟩."""

    check: Check
    statistic: float
    p_value: float


@dataclass(frozen=True, slots=True)
class ReplayAudit:
    verdict: Verdict
    p_value: float  # Bonferroni over the tests run
    level: float
    findings: tuple[Finding, ...]
    powers: tuple[Power, ...]
    detectable_shift: float | None  # towards the parent, in the weights' units, found with power 0.9
    dimension: int
    allowance: float  # (Δ* + Δ_replay)/σ
    summary: str


def audit(
    published: Tensor,
    replayed: Tensor,
    parent: Tensor | Lean | None,
    *,
    sigma: float,
    target_distance: float,
    replay_distance: float,
    level: float = 1e-3,
    earlier_noise: Tensor | None = None,
    unit_roundoff: float = FLOAT64_ROUNDOFF,
    grid_step: float = 0.0,
) -> ReplayAudit:
    """Test a release; all vectors are flat, (d,). False alarms have probability at most `level`.

    `target_distance` is Δ*; for a retrained release, the distance its training was held to. `earlier_noise`
    is an earlier release's (published - ŵ_R)/σ. `unit_roundoff` is that of the type the weights are stored
    in, `grid_step` the step of the grid that the release was rounded to, 0 if it was not. The parent's
    weights are deleted when they are superseded; a `Lean` takes their place. Without either, the release is
    not tested for leaning towards the parent, and the level is shared among the tests that run.
    """
    published, replayed = (_vector(v, published.numel()) for v in (published, replayed))
    _check_numbers(sigma, target_distance, replay_distance, level)
    if not 0 <= grid_step <= tails.MOST_GRID * sigma:
        raise ValueError(f"the grid's step must be at most σ/2, got {grid_step} with σ = {sigma}")
    difference = published - replayed
    slack = Slack(
        dimension=published.numel(),
        allowance=(target_distance + replay_distance) / sigma,
        rounding=unit_roundoff * _norm(published) / sigma,
        rounding_each=unit_roundoff * float(published.abs().max()) / sigma,
        grid=grid_step / sigma,
    )
    if not (math.isfinite(slack.allowance) and math.isfinite(slack.rounding)):
        raise ValueError("σ is too small against the distances or the weights to divide by")
    earlier = None if earlier_noise is None else _vector(earlier_noise, published.numel())
    lean = _lean(parent, replayed)
    findings = [_norm_finding(difference, sigma, slack), _shape_finding(difference, sigma, slack)]
    if lean is not None:
        findings.append(_component_finding(Check.FORGETTING, difference, lean.direction, sigma, slack))
    if earlier is not None and _norm(earlier) > 0:
        findings.append(_component_finding(Check.REPEAT, difference, earlier, sigma, slack))
    situation = Situation(
        slack=slack,
        level=level / len(findings),
        sigma=sigma,
        move=None if lean is None else lean.reach / sigma,
        earlier=None if earlier is None else _norm(earlier),
        cosine=1.0 if lean is None else lean.cosine,
    )
    return _conclude(findings, situation, level, parent=parent is not None)


def _lean(parent: Tensor | Lean | None, replayed: Tensor) -> Lean | None:
    """The direction to test, if there is one: a parent equal to ŵ_R leaves none."""
    if parent is None:
        return None
    if isinstance(parent, Lean):
        direction = _vector(parent.direction, replayed.numel())
        return Lean(direction, parent.reach, parent.cosine) if _norm(direction) > 0 else None
    move = _vector(parent, replayed.numel()) - replayed
    return Lean(move, reach=_norm(move), cosine=1.0) if _norm(move) > 0 else None


def noise_estimate(published: Tensor, replayed: Tensor, *, sigma: float) -> Tensor:
    """z, to hand to a later audit as `earlier_noise`. As secret as ŵ_R, which it gives away."""
    size = published.numel()
    return (_vector(published, size) - _vector(replayed, size)) / sigma


def _norm_finding(difference: Tensor, sigma: float, slack: Slack) -> Finding:
    """Two-sided: too short is missing or small noise, too long is a wrong model or too much of it."""
    norm = _norm(difference) / sigma
    p_value = 2 * min(tails.norm_below(norm, slack), tails.norm_above(norm, slack))
    return Finding(Check.NORM, norm / math.sqrt(slack.dimension), min(1.0, p_value))


def _shape_finding(difference: Tensor, sigma: float, slack: Slack) -> Finding:
    z = (difference / sigma).cpu().numpy()
    if slack.grid > 0:  # spread each weight over its cell of the grid (see `tails.ks_bias`)
        z = z + slack.grid * (np.random.default_rng(_DITHER).random(len(z)) - 0.5)
    expected = special.ndtr(np.sort(z))
    steps = np.arange(len(expected) + 1) / len(expected)
    distance = float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))
    return Finding(Check.SHAPE, distance, tails.ks_above(distance, slack))


def _component_finding(
    check: Check, difference: Tensor, direction: Tensor, sigma: float, slack: Slack
) -> Finding:
    unit = direction / direction.abs().max()  # first, so that tiny directions do not underflow when squared
    component = float(difference @ (unit / _norm(unit))) / sigma
    return Finding(check, component, tails.along(component, slack))


def _conclude(findings: list[Finding], situation: Situation, level: float, *, parent: bool) -> ReplayAudit:
    p_value = min(1.0, len(findings) * min(finding.p_value for finding in findings))
    verdict = Verdict.INCONSISTENT if p_value <= level else Verdict.CONSISTENT
    named = powers(situation)
    return ReplayAudit(
        verdict=verdict,
        p_value=p_value,
        level=level,
        findings=tuple(findings),
        powers=named,
        detectable_shift=detectable_shift(situation),
        dimension=situation.slack.dimension,
        allowance=situation.slack.allowance,
        summary=_summary(verdict, p_value, level, findings, named, parent=parent),
    )


def _summary(
    verdict: Verdict,
    p_value: float,
    level: float,
    findings: list[Finding],
    named: tuple[Power, ...],
    *,
    parent: bool,
) -> str:
    worst = min(findings, key=lambda finding: finding.p_value)
    first = (
        f"The release is {verdict}: the smallest of {len(findings)} p-values, corrected for their number, is "
        f"{p_value:.2g} ({worst.check}) against a level of {level:.2g}."
    )
    strong = [str(power.alternative) for power in named if power.power >= 0.9]
    weak = [str(power.alternative) for power in named if power.power < 0.9]
    parts = [first]
    if strong:
        parts.append(f"It would have found with probability 0.9 or more: {', '.join(strong)}.")
    if weak:
        parts.append(f"It could well have missed: {', '.join(weak)}.")
    if not parent:
        parts.append(
            "Without a direction towards the parent it did not look for a model that stayed near its parent."
        )
    parts.append("It takes the retained rows it was given on trust.")
    return " ".join(parts)


def _vector(v: Tensor, size: int) -> Tensor:
    if v.ndim != 1 or v.numel() != size or size == 0:
        raise ValueError(f"vectors must be flat and of one length, got {tuple(v.shape)}")
    flat = v.to("cpu", torch.float64)
    if not bool(torch.isfinite(flat).all()):
        raise ValueError("weights must be finite")
    return flat


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))


def _check_numbers(sigma: float, target_distance: float, replay_distance: float, level: float) -> None:
    if not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"σ must be positive and finite, got {sigma}")
    if not (0 <= target_distance < math.inf and 0 <= replay_distance < math.inf):
        raise ValueError("distances must be finite and not negative")
    if not 0 < level < 1:
        raise ValueError(f"the level must be between 0 and 1, got {level}")
