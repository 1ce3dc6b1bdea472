"""What the replay audit would find, and how surely: its power against named ways to be dishonest.

Each figure is the power of the one test that aims at the alternative, at that test's share of the level and
for the least favourable shift allowed. The audit as a whole finds at least as much.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from scipy import special

from worker.evaluation import tails
from worker.evaluation.tails import Slack


class Alternative(StrEnum):
    NO_NOISE = "no noise"
    HALF_NOISE = "half the noise (σ/2)"
    DOUBLE_NOISE = "twice the noise (2σ)"
    FLAT_NOISE = "noise of the right size that is uniform, not Gaussian"
    NOT_MOVED = "a model that did not move (parent plus noise)"
    REPEATED_NOISE = "the earlier noise again"


@dataclass(frozen=True, slots=True)
class Power:
    alternative: Alternative
    power: float


@dataclass(frozen=True, slots=True)
class Situation:
    """`level` is each test's own, `earlier` the length of the earlier noise.

    `move` is ⟨u, parent - ŵ_R⟩/σ along the tested direction u, and `cosine` that of the angle between u and
    parent - ŵ_R: ‖parent - ŵ_R‖/σ and 1 where the parent's weights are known. None: there is no direction,
    and the test that would need it does not run.
    """

    slack: Slack
    level: float
    sigma: float
    move: float | None
    earlier: float | None
    cosine: float = 1.0


def powers(situation: Situation) -> tuple[Power, ...]:
    """One for each alternative that means something here: a parent equal to ŵ_R had nowhere to move."""
    slack, level = situation.slack, situation.level
    figures = {
        Alternative.NO_NOISE: _no_noise(slack, level),
        Alternative.HALF_NOISE: _half_noise(slack, level),
        Alternative.DOUBLE_NOISE: _double_noise(slack, level),
        Alternative.FLAT_NOISE: _flat_noise(slack, level),
    }
    if situation.move is not None:
        figures[Alternative.NOT_MOVED] = _not_moved(slack, level, situation.move)
    if situation.earlier:
        figures[Alternative.REPEATED_NOISE] = _repeated(slack, level, situation.earlier)
    return tuple(Power(alternative, power) for alternative, power in figures.items())


def detectable_shift(situation: Situation, power: float = 0.9) -> float | None:
    """How far towards the parent, in the weights' units, a model must lean to be found with this power."""
    if situation.move is None or situation.cosine <= 0:
        return None
    threshold = tails.along_critical(situation.level, situation.slack) + situation.slack.rounding
    return situation.sigma * (threshold + float(special.ndtri(power))) / situation.cosine


def _no_noise(slack: Slack, level: float) -> float:
    """z is s alone: found for certain, or perhaps never."""
    found = slack.allowance + slack.length <= tails.norm_critical_below(level / 2, slack)
    return 1.0 if found else 0.0


def _half_noise(slack: Slack, level: float) -> float:
    """z = ξ/2 + s, so ‖2z‖² is noncentral χ²; the longest s hides it best."""
    reach = tails.norm_critical_below(level / 2, slack) - slack.length
    if reach <= 0:
        return 0.0
    return 1 - tails.norm_above(2 * reach, Slack(slack.dimension, 2 * slack.allowance, 0.0, 0.0))


def _double_noise(slack: Slack, level: float) -> float:
    """z = 2ξ + s; no shift at all hides it best."""
    reach = tails.norm_critical_above(level / 2, slack) + slack.length
    return tails.norm_above(reach / 2, Slack(slack.dimension, 0.0, 0.0, 0.0))


def _flat_noise(slack: Slack, level: float) -> float:
    """Uniform on ±√3: the length is right, the distribution function off by 0.057 at its worst point.

    Its density is below the normal's, so the same bias bounds what s can hide, and Bretagnolle's inequality
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
    """z = v + s - s', v the earlier noise: ⟨v, z⟩/‖v‖ ≥ ‖v‖ - 2·allowance, taking the same for both."""
    threshold = tails.along_critical(level, slack) + slack.rounding
    return 1.0 if earlier - 2 * slack.allowance >= threshold else 0.0
