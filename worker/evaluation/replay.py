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
from worker.evaluation.power import Power, Situation, detectable_shift, powers
from worker.evaluation.tails import Slack

FLOAT64_ROUNDOFF = 2.0**-53
FLOAT32_ROUNDOFF = 2.0**-24


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
    parent: Tensor | None,
    *,
    sigma: float,
    target_distance: float,
    replay_distance: float,
    level: float = 1e-3,
    earlier_noise: Tensor | None = None,
    unit_roundoff: float = FLOAT64_ROUNDOFF,
) -> ReplayAudit:
    """Test a release; all vectors are flat, (d,). False alarms have probability at most `level`.

    `target_distance` is Δ*; for a retrained release, the distance its training was held to. `earlier_noise`
    is an earlier release's (published - ŵ_R)/σ. `unit_roundoff` is that of the type the weights are stored
    in. Without `parent`, whose weights are deleted when they are superseded, the release is not tested for
    leaning towards it; the level is shared among the tests that run.
    """
    published, replayed = (_vector(v, published.numel()) for v in (published, replayed))
    _check_numbers(sigma, target_distance, replay_distance, level)
    difference = published - replayed
    slack = Slack(
        dimension=published.numel(),
        allowance=(target_distance + replay_distance) / sigma,
        rounding=unit_roundoff * _norm(published) / sigma,
        rounding_each=unit_roundoff * float(published.abs().max()) / sigma,
    )
    if not (math.isfinite(slack.allowance) and math.isfinite(slack.rounding)):
        raise ValueError("σ is too small against the distances or the weights to divide by")
    earlier = None if earlier_noise is None else _vector(earlier_noise, published.numel())
    move = None if parent is None else _vector(parent, published.numel()) - replayed
    findings = [_norm_finding(difference, sigma, slack), _shape_finding(difference, sigma, slack)]
    for check, direction in ((Check.FORGETTING, move), (Check.REPEAT, earlier)):
        if direction is not None and _norm(direction) > 0:
            findings.append(_component_finding(check, difference, direction, sigma, slack))
    situation = Situation(
        slack=slack,
        level=level / len(findings),
        sigma=sigma,
        move=None if move is None else _norm(move) / sigma,
        earlier=None if earlier is None else _norm(earlier),
    )
    return _conclude(findings, situation, level)


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
    expected = special.ndtr(np.sort((difference / sigma).cpu().numpy()))
    steps = np.arange(len(expected) + 1) / len(expected)
    distance = float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))
    return Finding(Check.SHAPE, distance, tails.ks_above(distance, slack))


def _component_finding(
    check: Check, difference: Tensor, direction: Tensor, sigma: float, slack: Slack
) -> Finding:
    unit = direction / direction.abs().max()  # first, so that tiny directions do not underflow when squared
    component = float(difference @ (unit / _norm(unit))) / sigma
    return Finding(check, component, tails.along(component, slack))


def _conclude(findings: list[Finding], situation: Situation, level: float) -> ReplayAudit:
    p_value = min(1.0, len(findings) * min(finding.p_value for finding in findings))
    verdict = Verdict.INCONSISTENT if p_value <= level else Verdict.CONSISTENT
    named = powers(situation)
    return ReplayAudit(
        verdict=verdict,
        p_value=p_value,
        level=level,
        findings=tuple(findings),
        powers=named,
        detectable_shift=detectable_shift(situation) if situation.move else None,
        dimension=situation.slack.dimension,
        allowance=situation.slack.allowance,
        summary=_summary(verdict, p_value, level, findings, named, parent=situation.move is not None),
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
        parts.append("Without the parent's weights it did not look for a model that stayed near its parent.")
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
