"""Power of the replay audit against named kinds of dishonest release.

Each figure is the power of the one test that targets the alternative, at that test's share of the level and
for the least favourable offset s allowed. The audit as a whole detects at least as much.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from scipy import special

from worker.evaluation import tails
from worker.evaluation.tails import Slack


class Alternative(StrEnum):
    """A way in which a release can be dishonest."""

    NO_NOISE = "no noise"
    HALF_NOISE = "half the noise (σ/2)"
    DOUBLE_NOISE = "twice the noise (2σ)"
    FLAT_NOISE = "noise of the right size that is uniform, not Gaussian"
    NOT_MOVED = "a model that did not move (parent plus noise)"
    REPEATED_NOISE = "the earlier noise again"


@dataclass(frozen=True, slots=True)
class Power:
    """Probability that the audit detects an alternative."""

    alternative: Alternative
    power: float


@dataclass(frozen=True, slots=True)
class AuditParameters:
    """What the power of an audit depends on.

    `level` is that of each test, `earlier` the length of the earlier noise.

    `move` is ⟨u, parent - ŵ_R⟩/σ along the tested direction u, and `cosine` that of the angle between u and
    parent - ŵ_R. They are ‖parent - ŵ_R‖/σ and 1 if the parent's weights are known. `move` is None if there
    is no direction, and the test that needs it does not run.
    """

    slack: Slack
    level: float
    sigma: float
    move: float | None
    earlier: float | None
    cosine: float = 1.0


def compute_powers(parameters: AuditParameters) -> tuple[Power, ...]:
    """Return the power against each alternative that applies. A parent equal to ŵ_R had nowhere to move."""
    slack, level = parameters.slack, parameters.level
    figures = {
        Alternative.NO_NOISE: _no_noise(slack, level),
        Alternative.HALF_NOISE: _half_noise(slack, level),
        Alternative.DOUBLE_NOISE: _double_noise(slack, level),
        Alternative.FLAT_NOISE: _flat_noise(slack, level),
    }
    if parameters.move is not None:
        figures[Alternative.NOT_MOVED] = _not_moved(slack, level, parameters.move)
    if parameters.earlier:
        figures[Alternative.REPEATED_NOISE] = _repeated(slack, level, parameters.earlier)
    return tuple(Power(alternative, power) for alternative, power in figures.items())


def detectable_shift(parameters: AuditParameters, power: float = 0.9) -> float | None:
    """Return how far towards the parent a model must lean to be detected with this power.

    The result is in the weights' units.
    """
    if parameters.move is None or parameters.cosine <= 0:
        return None
    threshold = tails.along_critical(parameters.level, parameters.slack) + parameters.slack.rounding
    return parameters.sigma * (threshold + float(special.ndtri(power))) / parameters.cosine


def _no_noise(slack: Slack, level: float) -> float:
    """z is s alone, so detection is either certain or not claimed."""
    detected = slack.allowance + slack.length <= tails.norm_critical_below(level / 2, slack)
    return 1.0 if detected else 0.0


def _half_noise(slack: Slack, level: float) -> float:
    """z = ξ/2 + s, so ‖2z‖² is noncentral χ². The longest s hides it best."""
    reach = tails.norm_critical_below(level / 2, slack) - slack.length
    if reach <= 0:
        return 0.0
    return 1 - tails.norm_above(2 * reach, Slack(slack.dimension, 2 * slack.allowance, 0.0, 0.0))


def _double_noise(slack: Slack, level: float) -> float:
    """z = 2ξ + s. Zero offset hides it best."""
    reach = tails.norm_critical_above(level / 2, slack) + slack.length
    return tails.norm_above(reach / 2, Slack(slack.dimension, 0.0, 0.0, 0.0))


def _flat_noise(slack: Slack, level: float) -> float:
    """Uniform noise on ±√3 has the right length, but the wrong distribution.

    Its distribution function is off by 0.057 at the worst point.

    Its density is below that of the normal, so the same bias bounds what s can hide. Bretagnolle's inequality
    bounds how far the sample can stray.
    """
    edge = math.sqrt(3)
    place = math.sqrt(-2 * math.log(math.sqrt(2 * math.pi) / (2 * edge)))  # where the densities cross
    gap = float(special.ndtr(place)) - (0.5 + place / (2 * edge))
    spare = gap - tails.ks_bias(slack) - tails.ks_critical(level, slack)
    if spare <= 0:
        return 0.0
    return max(0.0, 1 - 2 * math.e * math.exp(-2 * slack.dimension * spare**2))


def _not_moved(slack: Slack, level: float, move: float) -> float:
    """⟨u, z⟩ is N(‖parent - ŵ_R‖/σ, 1)."""
    threshold = tails.along_critical(level, slack) + slack.rounding
    return float(special.ndtr(move - threshold) + special.ndtr(-move - threshold))


def _repeated(slack: Slack, level: float, earlier: float) -> float:
    """z = v + s - s' for the earlier noise v, so ⟨v, z⟩/‖v‖ ≥ ‖v‖ - 2·allowance.

    The same allowance is used for both releases.
    """
    threshold = tails.along_critical(level, slack) + slack.rounding
    return 1.0 if earlier - 2 * slack.allowance >= threshold else 0.0
