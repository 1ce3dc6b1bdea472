"""Tail probabilities of z = ξ + s + e, with ξ standard normal in d dimensions and s unknown but short.

‖s‖ ≤ `allowance` is what a certified release may be off by, in units of σ; e, at most `rounding` long and
perhaps depending on ξ, is what storing the weights in floating point may add. Every p-value here is the
largest over the s and e allowed, so it is valid, and conservative unless the worst of them is the case.
Critical values invert the p-values for the statements of power.

Weights rounded to a grid of step `grid`·σ carry a second error, at most grid/2 in each coordinate, which each
test allows for in its own way (docs/evaluation.md, replay audit).
"""

import math
from dataclasses import dataclass

from scipy import optimize, special, stats

# Beyond this shift the triangle inequality replaces the exact law, whose series grows with it.
_LARGEST_EXACT_SHIFT = 1e3
_DENSITY = 1 / math.sqrt(2 * math.pi)  # the standard normal's largest
_DENSITY_SLOPE = _DENSITY * math.exp(-0.5)  # the largest of its derivative
# Up to here what `along` neglects of a lattice is below exp(-2π²·4) = 1e-34 of a tail.
MOST_GRID = 0.5


@dataclass(frozen=True, slots=True)
class Slack:
    dimension: int
    allowance: float  # bounds ‖s‖
    rounding: float  # bounds ‖e‖
    rounding_each: float  # bounds each |e_i|
    grid: float = 0.0  # step of the grid that ξ + s was rounded to; at most MOST_GRID

    @property
    def length(self) -> float:
        """How much longer or shorter rounding of either kind can have made z."""
        return self.rounding + math.sqrt(self.dimension) * self.grid / 2


# -- ‖z‖ ----------------------------------------------------------------------------------------------


def norm_below(norm: float, slack: Slack) -> float:
    """sup P(‖z‖ ≤ norm): a shift only lengthens z in law, so s = 0 is the worst."""
    return float(special.chdtr(slack.dimension, _square(norm + slack.length)))


def norm_above(norm: float, slack: Slack) -> float:
    """sup P(‖z‖ ≥ norm): the noncentral χ² tail increases with ‖s‖, so the longest s is the worst."""
    length = max(0.0, norm - slack.length)
    if slack.allowance <= 0:
        return float(special.chdtrc(slack.dimension, _square(length)))
    if slack.allowance > _LARGEST_EXACT_SHIFT:
        return float(special.chdtrc(slack.dimension, _square(max(0.0, length - slack.allowance))))
    return float(stats.ncx2.sf(_square(length), slack.dimension, slack.allowance**2))


def norm_critical_below(level: float, slack: Slack) -> float:
    """The longest z with `norm_below` ≤ level; negative when there is none."""
    return math.sqrt(2 * special.gammaincinv(slack.dimension / 2, level)) - slack.length


def norm_critical_above(level: float, slack: Slack) -> float:
    """The shortest z with `norm_above` ≤ level."""
    if 0 < slack.allowance <= _LARGEST_EXACT_SHIFT:
        exact = stats.ncx2.isf(level, slack.dimension, slack.allowance**2)
        return math.sqrt(exact) + slack.length
    central = math.sqrt(special.chdtri(slack.dimension, level))
    return central + slack.allowance + slack.length


# -- ⟨u, z⟩ for a unit vector u independent of ξ ------------------------------------------------------


def along(component: float, slack: Slack) -> float:
    """sup P(|⟨u, z⟩| ≥ |component|): ⟨u, ξ + s⟩ is N(μ, 1) with |μ| ≤ ‖s‖.

    On a grid, rounding acts on moment generating functions like independent uniform noise: z is sub-Gaussian
    with variance 1 + grid²/12, and Chernoff's bound takes the place of the exact tail.
    """
    length = max(0.0, abs(component) - slack.rounding)
    if slack.grid > 0:
        beyond = max(0.0, length - slack.allowance)
        return min(1.0, 2 * math.exp(-(beyond**2) / (2 * _variance(slack))))
    return float(special.ndtr(slack.allowance - length) + special.ndtr(-slack.allowance - length))


def along_critical(level: float, slack: Slack) -> float:
    """The smallest |⟨u, z⟩| with `along` ≤ level."""
    if slack.grid > 0:
        chernoff = math.sqrt(2 * _variance(slack) * math.log(2 / level))
        return slack.allowance + chernoff + slack.rounding
    exact = Slack(slack.dimension, slack.allowance, 0.0, 0.0)
    low, high = (max(0.0, slack.allowance - float(special.ndtri(p))) for p in (level, level / 2))
    # at the ends only rounding separates the two: with no shift both tails are alike, with a long one
    # the far tail is nothing
    for end in (low, high):
        if abs(along(end, exact) - level) <= 1e-9 * level:
            return end + slack.rounding
    return float(optimize.brentq(lambda size: along(size, exact) / level - 1, low, high)) + slack.rounding


def _variance(slack: Slack) -> float:
    """Of a coordinate of ξ after it was rounded to the grid, at most."""
    return 1 + slack.grid**2 / 12


# -- the coordinates' distribution --------------------------------------------------------------------


def ks_bias(slack: Slack) -> float:
    """How far s and e can move the expected distribution function from Φ, at any point.

    The mean of Φ(t - s_i) differs from Φ(t) by at most φ(0)·Σ|s_i|/d ≤ φ(0)·‖s‖/√d, and moving every
    coordinate by e_i moves it by at most φ(0)·max|e_i|. Coordinates on a grid are tested with uniform dither
    over their cell: their distribution function is exact at the edges of a cell and linear within, off by at
    most grid²/8·max|φ'|.
    """
    shift = slack.allowance / math.sqrt(slack.dimension) + slack.rounding_each
    return _DENSITY * shift + _DENSITY_SLOPE * slack.grid**2 / 8


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
