"""Tail probabilities of z = ξ + s + e, with ξ standard normal in d dimensions and s unknown but short.

‖s‖ ≤ `allowance` is what a certified release may be off by, in units of σ; e, at most `rounding` long and
perhaps depending on ξ, is what storing the weights in floating point may add. Every p-value here is the
largest over the s and e allowed, so it is valid, and conservative unless the worst of them is the case.
Critical values invert the p-values for the statements of power.
"""

import math
from dataclasses import dataclass

from scipy import optimize, special, stats

# Beyond this shift the triangle inequality replaces the exact law, whose series grows with it.
_LARGEST_EXACT_SHIFT = 1e3
_DENSITY = 1 / math.sqrt(2 * math.pi)  # the standard normal's largest


@dataclass(frozen=True, slots=True)
class Slack:
    dimension: int
    allowance: float  # bounds ‖s‖
    rounding: float  # bounds ‖e‖
    rounding_each: float  # bounds each |e_i|


# -- ‖z‖ ----------------------------------------------------------------------------------------------


def norm_below(norm: float, slack: Slack) -> float:
    """sup P(‖z‖ ≤ norm): a shift only lengthens z in law, so s = 0 is the worst."""
    return float(special.chdtr(slack.dimension, _square(norm + slack.rounding)))


def norm_above(norm: float, slack: Slack) -> float:
    """sup P(‖z‖ ≥ norm): the noncentral χ² tail increases with ‖s‖, so the longest s is the worst."""
    length = max(0.0, norm - slack.rounding)
    if slack.allowance <= 0:
        return float(special.chdtrc(slack.dimension, _square(length)))
    if slack.allowance > _LARGEST_EXACT_SHIFT:
        return float(special.chdtrc(slack.dimension, _square(max(0.0, length - slack.allowance))))
    return float(stats.ncx2.sf(_square(length), slack.dimension, slack.allowance**2))


def norm_critical_below(level: float, slack: Slack) -> float:
    """The longest z with `norm_below` ≤ level; negative when there is none."""
    return math.sqrt(2 * special.gammaincinv(slack.dimension / 2, level)) - slack.rounding


def norm_critical_above(level: float, slack: Slack) -> float:
    """The shortest z with `norm_above` ≤ level."""
    if 0 < slack.allowance <= _LARGEST_EXACT_SHIFT:
        exact = stats.ncx2.isf(level, slack.dimension, slack.allowance**2)
        return math.sqrt(exact) + slack.rounding
    central = math.sqrt(special.chdtri(slack.dimension, level))
    return central + slack.allowance + slack.rounding


# -- ⟨u, z⟩ for a unit vector u independent of ξ ------------------------------------------------------


def along(component: float, slack: Slack) -> float:
    """sup P(|⟨u, z⟩| ≥ |component|): ⟨u, ξ + s⟩ is N(μ, 1) with |μ| ≤ ‖s‖."""
    length = max(0.0, abs(component) - slack.rounding)
    return float(special.ndtr(slack.allowance - length) + special.ndtr(-slack.allowance - length))


def along_critical(level: float, slack: Slack) -> float:
    """The smallest |⟨u, z⟩| with `along` ≤ level."""
    exact = Slack(slack.dimension, slack.allowance, 0.0, 0.0)
    low, high = (max(0.0, slack.allowance - float(special.ndtri(p))) for p in (level, level / 2))
    # at the ends only rounding separates the two: with no shift both tails are alike, with a long one
    # the far tail is nothing
    for end in (low, high):
        if abs(along(end, exact) - level) <= 1e-9 * level:
            return end + slack.rounding
    return float(optimize.brentq(lambda size: along(size, exact) / level - 1, low, high)) + slack.rounding


# -- the coordinates' distribution --------------------------------------------------------------------


def ks_bias(slack: Slack) -> float:
    """How far s and e can move the expected distribution function from Φ, at any point.

    The mean of Φ(t - s_i) differs from Φ(t) by at most φ(0)·Σ|s_i|/d ≤ φ(0)·‖s‖/√d, and moving every
    coordinate by e_i moves it by at most φ(0)·max|e_i|.
    """
    return _DENSITY * (slack.allowance / math.sqrt(slack.dimension) + slack.rounding_each)


def ks_above(distance: float, slack: Slack) -> float:
    """sup P(sup_t |F_z(t) - Φ(t)| ≥ distance).

    z_i are independent but, with s ≠ 0, not identically distributed. Bretagnolle (1980; Shorack & Wellner
    1986, section 25.1) bounds the distance to the mean distribution function for that case, for every d:
    P(√d·sup|F - F̄| ≥ x) ≤ 2e·exp(-2x²).
    """
    beyond = max(0.0, distance - ks_bias(slack))
    return min(1.0, 2 * math.e * math.exp(-2 * slack.dimension * beyond**2))


def ks_critical(level: float, slack: Slack) -> float:
    """The smallest distance with `ks_above` ≤ level; above 1 when there is none."""
    return ks_bias(slack) + math.sqrt(math.log(2 * math.e / level) / (2 * slack.dimension))


def _square(x: float) -> float:
    return x * x  # ∞ where x**2 would raise
