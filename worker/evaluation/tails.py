"""Tail probabilities of z = ξ + s + e, with ξ standard normal in d dimensions and s unknown but short.

‖s‖ ≤ `allowance` is the error a certified release may have, in units of σ. e is the error of storing the
weights in floating point: at most `rounding` long, and possibly dependent on ξ. Every p-value is the largest
over all allowed s and e, so it is valid, and conservative unless the worst case holds. Critical values invert
the p-values for statements of power.

Weights rounded to a grid of step `grid`·σ carry a second error of at most grid/2 in each coordinate. Each
test allows for it in its own way (docs/evaluation.md, replay audit).
"""

import math
from dataclasses import dataclass

from scipy import optimize, special, stats

# Beyond this offset the triangle inequality replaces the exact law, whose series grows with it.
_LARGEST_EXACT_OFFSET = 1e3
_DENSITY = 1 / math.sqrt(2 * math.pi)  # maximum of the standard normal density
_DENSITY_SLOPE = _DENSITY * math.exp(-0.5)  # maximum of its derivative
# Up to this step, what `along` neglects of the lattice is below exp(-2π²·4) = 1e-34 of a tail.
MOST_GRID = 0.5


@dataclass(frozen=True, slots=True)
class Slack:
    """The errors that an honest release may have, in units of σ."""

    dimension: int
    allowance: float  # bounds ‖s‖
    rounding: float  # bounds ‖e‖
    rounding_each: float  # bounds each |e_i|
    grid: float = 0.0  # step of the grid that ξ + s was rounded to; at most MOST_GRID

    @property
    def length(self) -> float:
        """How much either kind of rounding can have changed ‖z‖."""
        return self.rounding + math.sqrt(self.dimension) * self.grid / 2


# -- ‖z‖ ----------------------------------------------------------------------------------------------


def norm_below(norm: float, slack: Slack) -> float:
    """Return sup P(‖z‖ ≤ norm). An offset makes z stochastically longer, so s = 0 is the worst case."""
    return float(special.chdtr(slack.dimension, _square(norm + slack.length)))


def norm_above(norm: float, slack: Slack) -> float:
    """Return sup P(‖z‖ ≥ norm).

    The noncentral χ² tail increases with ‖s‖, so the longest s is the worst case.
    """
    length = max(0.0, norm - slack.length)
    if slack.allowance <= 0:
        return float(special.chdtrc(slack.dimension, _square(length)))
    if slack.allowance > _LARGEST_EXACT_OFFSET:
        return float(special.chdtrc(slack.dimension, _square(max(0.0, length - slack.allowance))))
    return float(stats.ncx2.sf(_square(length), slack.dimension, slack.allowance**2))


def norm_critical_below(level: float, slack: Slack) -> float:
    """Return the longest ‖z‖ with `norm_below` ≤ level, which is negative if there is none."""
    return math.sqrt(2 * special.gammaincinv(slack.dimension / 2, level)) - slack.length


def norm_critical_above(level: float, slack: Slack) -> float:
    """Return the shortest ‖z‖ with `norm_above` ≤ level."""
    if 0 < slack.allowance <= _LARGEST_EXACT_OFFSET:
        exact = stats.ncx2.isf(level, slack.dimension, slack.allowance**2)
        return math.sqrt(exact) + slack.length
    central = math.sqrt(special.chdtri(slack.dimension, level))
    return central + slack.allowance + slack.length


# -- ⟨u, z⟩ for a unit vector u independent of ξ ------------------------------------------------------


def along(component: float, slack: Slack) -> float:
    """Return sup P(|⟨u, z⟩| ≥ |component|), where ⟨u, ξ + s⟩ is N(μ, 1) with |μ| ≤ ‖s‖.

    On a grid, rounding acts on moment generating functions like independent uniform noise. z is then
    sub-Gaussian with variance 1 + grid²/12, and Chernoff's bound replaces the exact tail.
    """
    length = max(0.0, abs(component) - slack.rounding)
    if slack.grid > 0:
        beyond = max(0.0, length - slack.allowance)
        return min(1.0, 2 * math.exp(-(beyond**2) / (2 * _variance(slack))))
    return float(special.ndtr(slack.allowance - length) + special.ndtr(-slack.allowance - length))


def along_critical(level: float, slack: Slack) -> float:
    """Return the smallest |⟨u, z⟩| with `along` ≤ level."""
    if slack.grid > 0:
        chernoff = math.sqrt(2 * _variance(slack) * math.log(2 / level))
        return slack.allowance + chernoff + slack.rounding
    exact = Slack(slack.dimension, slack.allowance, 0.0, 0.0)
    low, high = (max(0.0, slack.allowance - float(special.ndtri(p))) for p in (level, level / 2))
    # At the ends only rounding separates the two: without an offset both tails are equal, and with a
    # long one the far tail vanishes.
    for end in (low, high):
        if abs(along(end, exact) - level) <= 1e-9 * level:
            return end + slack.rounding
    return float(optimize.brentq(lambda size: along(size, exact) / level - 1, low, high)) + slack.rounding


def _variance(slack: Slack) -> float:
    """Return the variance proxy of a coordinate of ξ after rounding to the grid."""
    return 1 + slack.grid**2 / 12


# -- the coordinates' distribution --------------------------------------------------------------------


def ks_bias(slack: Slack) -> float:
    """Bound how far s and e can move the expected distribution function from Φ at any point.

    The mean of Φ(t - s_i) differs from Φ(t) by at most φ(0)·Σ|s_i|/d ≤ φ(0)·‖s‖/√d, and moving every
    coordinate by e_i changes it by at most φ(0)·max|e_i|. Coordinates on a grid are tested with uniform
    dither over their cell. Their distribution function is exact at the edges of a cell and linear within, so
    it is off by at most grid²/8·max|φ'|.
    """
    offset = slack.allowance / math.sqrt(slack.dimension) + slack.rounding_each
    return _DENSITY * offset + _DENSITY_SLOPE * slack.grid**2 / 8


def ks_above(distance: float, slack: Slack) -> float:
    """Return sup P(sup_t |F_z(t) - Φ(t)| ≥ distance).

    The z_i are independent but, for s ≠ 0, not identically distributed. For that case Bretagnolle (1980;
    Shorack & Wellner 1986, section 25.1) bounds the distance to the mean distribution function, for every d:
    P(√d·sup|F - F̄| ≥ x) ≤ 2e·exp(-2x²).
    """
    beyond = max(0.0, distance - ks_bias(slack))
    return min(1.0, 2 * math.e * math.exp(-2 * slack.dimension * beyond**2))


def ks_critical(level: float, slack: Slack) -> float:
    """Return the smallest distance with `ks_above` ≤ level, which exceeds 1 if there is none."""
    return ks_bias(slack) + math.sqrt(math.log(2 * math.e / level) / (2 * slack.dimension))


def _square(x: float) -> float:
    return x * x  # infinite where x**2 would raise
