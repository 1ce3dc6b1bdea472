"""The replay audit: does a published model look like retraining on R plus the certified noise?

With R at hand, retrain to ŵ_R and test z = (published - ŵ_R)/σ. In an honest release z = ξ + s with ξ
standard normal and ‖s‖ ≤ (Δ* + Δ_replay)/σ: Δ* bounds the error of the release and Δ_replay that of the
replay. Neither ŵ_R nor the parent depends on ξ. The audit trusts the R it is given. docs/evaluation.md
describes the tests.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from scipy import special
from torch import Tensor

from worker.evaluation import tails
from worker.evaluation.direction import ParentDirection
from worker.evaluation.power import AuditParameters, Power, compute_powers, detectable_shift
from worker.evaluation.tails import Slack

FLOAT64_ROUNDOFF = 2.0**-53
FLOAT32_ROUNDOFF = 2.0**-24
_DITHER = 1  # Any fixed seed will do: the dither must be independent of the noise, not secret.


class Verdict(StrEnum):
    """Conclusion of an audit."""

    CONSISTENT = "consistent with an honest release"
    INCONSISTENT = "not consistent with an honest release"


class Check(StrEnum):
    """What a test examines."""

    NORM = "length of the noise"
    SHAPE = "shape of the noise"
    FORGETTING = "lean towards the parent"
    REPEAT = "likeness to earlier noise"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one test. `statistic` is ‖z‖/√d, the Kolmogorov–Smirnov distance, or ⟨u, z⟩."""

    check: Check
    statistic: float
    p_value: float


@dataclass(frozen=True, slots=True)
class ReplayAudit:
    """Verdict, tests and power of one audit."""

    verdict: Verdict
    p_value: float  # Bonferroni over the tests run
    level: float
    findings: tuple[Finding, ...]
    powers: tuple[Power, ...]
    detectable_shift: float | None  # towards the parent, in the weights' units, detected with power 0.9
    dimension: int
    allowance: float  # (Δ* + Δ_replay)/σ
    summary: str


def audit(
    published: Tensor,
    replayed: Tensor,
    parent: Tensor | ParentDirection | None,
    *,
    sigma: float,
    target_distance: float,
    replay_distance: float,
    level: float = 1e-3,
    earlier_noise: Tensor | None = None,
    unit_roundoff: float = FLOAT64_ROUNDOFF,
    grid_step: float = 0.0,
) -> ReplayAudit:
    """Test a release. All vectors are flat, (d,). The probability of a false alarm is at most `level`.

    `target_distance` is Δ*, or for a retrained release the distance its training was held to. `earlier_noise`
    is the (published - ŵ_R)/σ of an earlier release. `unit_roundoff` belongs to the dtype the weights are
    stored in, and `grid_step` is the step of the grid the release was rounded to, or 0. The parent's weights
    are deleted when they are superseded, so a `ParentDirection` can take their place. Without either, the
    audit does not test for a lean towards the parent, and the tests that run share the level.
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
    direction = _direction(parent, replayed)
    findings = [_norm_finding(difference, sigma, slack), _shape_finding(difference, sigma, slack)]
    if direction is not None:
        findings.append(_component_finding(Check.FORGETTING, difference, direction.direction, sigma, slack))
    if earlier is not None and _norm(earlier) > 0:
        findings.append(_component_finding(Check.REPEAT, difference, earlier, sigma, slack))
    parameters = AuditParameters(
        slack=slack,
        level=level / len(findings),
        sigma=sigma,
        move=None if direction is None else direction.reach / sigma,
        earlier=None if earlier is None else _norm(earlier),
        cosine=1.0 if direction is None else direction.cosine,
    )
    return _conclude(findings, parameters, level, parent=parent is not None)


def _direction(parent: Tensor | ParentDirection | None, replayed: Tensor) -> ParentDirection | None:
    """Return the direction to test, or None. A parent equal to ŵ_R leaves no direction."""
    if parent is None:
        return None
    if isinstance(parent, ParentDirection):
        direction = _vector(parent.direction, replayed.numel())
        return ParentDirection(direction, parent.reach, parent.cosine) if _norm(direction) > 0 else None
    move = _vector(parent, replayed.numel()) - replayed
    return ParentDirection(move, reach=_norm(move), cosine=1.0) if _norm(move) > 0 else None


def noise_estimate(published: Tensor, replayed: Tensor, *, sigma: float) -> Tensor:
    """Return z, the `earlier_noise` of a later audit. It reveals ŵ_R and is as secret."""
    size = published.numel()
    return (_vector(published, size) - _vector(replayed, size)) / sigma


def _norm_finding(difference: Tensor, sigma: float, slack: Slack) -> Finding:
    """Test the length from both sides.

    Too short means missing noise. Too long means a wrong model or too much noise.
    """
    norm = _norm(difference) / sigma
    p_value = 2 * min(tails.norm_below(norm, slack), tails.norm_above(norm, slack))
    return Finding(Check.NORM, norm / math.sqrt(slack.dimension), min(1.0, p_value))


def _shape_finding(difference: Tensor, sigma: float, slack: Slack) -> Finding:
    """Test the distribution of the coordinates by Kolmogorov–Smirnov."""
    z = (difference / sigma).cpu().numpy()
    if slack.grid > 0:  # Spread each weight over its grid cell (see `tails.ks_bias`).
        z = z + slack.grid * (np.random.default_rng(_DITHER).random(len(z)) - 0.5)
    expected = special.ndtr(np.sort(z))
    steps = np.arange(len(expected) + 1) / len(expected)
    distance = float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))
    return Finding(Check.SHAPE, distance, tails.ks_above(distance, slack))


def _component_finding(
    check: Check, difference: Tensor, direction: Tensor, sigma: float, slack: Slack
) -> Finding:
    """Test the component of z along a direction."""
    unit = direction / direction.abs().max()  # avoids underflow when a tiny direction is squared
    component = float(difference @ (unit / _norm(unit))) / sigma
    return Finding(check, component, tails.along(component, slack))


def _conclude(
    findings: list[Finding], parameters: AuditParameters, level: float, *, parent: bool
) -> ReplayAudit:
    p_value = min(1.0, len(findings) * min(finding.p_value for finding in findings))
    verdict = Verdict.INCONSISTENT if p_value <= level else Verdict.CONSISTENT
    named = compute_powers(parameters)
    return ReplayAudit(
        verdict=verdict,
        p_value=p_value,
        level=level,
        findings=tuple(findings),
        powers=named,
        detectable_shift=detectable_shift(parameters),
        dimension=parameters.slack.dimension,
        allowance=parameters.slack.allowance,
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
        parts.append(f"The audit detects each of these with probability 0.9 or more: {', '.join(strong)}.")
    if weak:
        parts.append(f"It may miss: {', '.join(weak)}.")
    if not parent:
        parts.append(
            "Without a direction towards the parent, it did not test for a model that stayed near its parent."
        )
    parts.append("It trusts the retained rows it was given.")
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
