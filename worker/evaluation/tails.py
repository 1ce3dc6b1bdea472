"""Tail probabilities of z = ξ + s + e, with ξ standard normal in d dimensions and s unknown but short.

‖s‖ ≤ `allowance` is what a certified release may be off by, in units of σ; e, at most `rounding` long and
perhaps depending on ξ, is what storing the weights in floating point may add. Every p-value here is the
largest over the s and e allowed, so it is valid, and conservative unless the worst of them is the case.
Critical values invert the p-values for the statements of power.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import optimize, stats

# Above this noncentrality the triangle inequality replaces the exact law, whose series grows with it.
_LARGEST_NONCENTRALITY = 1e6
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
    return float(stats.chi2.cdf((norm + slack.rounding) ** 2, slack.dimension))


def norm_above(norm: float, slack: Slack) -> float:
    """sup P(‖z‖ ≥ norm): the noncentral χ² tail increases with ‖s‖, so the longest s is the worst."""
    length = max(0.0, norm - slack.rounding)
    if slack.allowance <= 0:
        return float(stats.chi2.sf(length**2, slack.dimension))
    if slack.allowance**2 > _LARGEST_NONCENTRALITY:
        return float(stats.chi2.sf(max(0.0, length - slack.allowance) ** 2, slack.dimension))
    return float(stats.ncx2.sf(length**2, slack.dimension, slack.allowance**2))


def norm_critical_below(level: float, slack: Slack) -> float:
    """The longest z with `norm_below` ≤ level; negative when there is none."""
    return math.sqrt(stats.chi2.ppf(level, slack.dimension)) - slack.rounding


def norm_critical_above(level: float, slack: Slack) -> float:
    """The shortest z with `norm_above` ≤ level."""
    central = math.sqrt(stats.chi2.isf(level, slack.dimension))
    if slack.allowance <= 0:
        return central + slack.rounding
    longest = central + slack.allowance  # the triangle inequality
    if slack.allowance**2 > _LARGEST_NONCENTRALITY:
        return longest + slack.rounding
    exact = Slack(slack.dimension, slack.allowance, 0.0, 0.0)
    return _root(lambda norm: norm_above(norm, exact), level, central, longest) + slack.rounding


# -- ⟨u, z⟩ for a unit vector u independent of ξ ------------------------------------------------------


def along(component: float, slack: Slack) -> float:
    """sup P(|⟨u, z⟩| ≥ |component|): ⟨u, ξ + s⟩ is N(μ, 1) with |μ| ≤ ‖s‖."""
    length = max(0.0, abs(component) - slack.rounding)
    return float(stats.norm.sf(length - slack.allowance) + stats.norm.sf(length + slack.allowance))


def along_critical(level: float, slack: Slack) -> float:
    """The smallest |⟨u, z⟩| with `along` ≤ level."""
    exact = Slack(slack.dimension, slack.allowance, 0.0, 0.0)
    low = slack.allowance + float(stats.norm.isf(level))
    high = slack.allowance + float(stats.norm.isf(level / 2))
    return _root(lambda size: along(size, exact), level, max(0.0, low), high) + slack.rounding


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


def _root(tail: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Where a decreasing tail meets `level`; the end of the bracket if rounding hides the crossing."""
    if tail(high) >= level:
        return high
    if tail(low) <= level:
        return low
    # in logarithms, or levels below the root finder's tolerance would all look alike
    return float(optimize.brentq(lambda x: math.log(max(tail(x), 1e-320)) - math.log(level), low, high))
