"""Arithmetic of the Gaussian mechanism: noise for a distance, (ε, δ) for a noise, composition of releases.

Everything is a function of the **shift** ``s = Δ/σ``, the distance between the two noised points in
standard deviations. The exact trade-off (Balle & Wang 2018, theorem 8) is

    δ(ε, s) = Φ(-a) - e^ε·Φ(-b),      a = ε/s - s/2,   b = ε/s + s/2.

Evaluated as written, it cancels when s is small and underflows when δ is small. Since (b² - a²)/2 = ε,
e^ε·φ(b) = φ(a), and with the Mills ratio M(x) = Φ(-x)/φ(x),

    δ = φ(a)·(M(a) - M(b)) = φ(a)·∫_a^b R(x) dx,      R(x) = -M'(x) = 1 - x·M(x) > 0,

The difference is used when the two terms are far apart. The integral, which subtracts nothing, is used when
they are close. Results that a guarantee depends on are rounded to the safe side by ``_SLACK``, which exceeds
the relative error of ``delta_of`` over the whole range (δ ≥ 1e-300, 1e-12 ≤ s ≤ 1e3).
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache

# Limits for policies. Well inside them, the residual of the noise is negligible compared with δ.
SMALLEST_DELTA = 1e-15
LARGEST_EPSILON = 20.0

# Total variation distance between one released coordinate and a rounded exact Gaussian, which comes from the
# finite number of random bits alone (docs/maths.md, section 4), and the same for a file of at most
# `LARGEST_DIMENSION` weights.
COORDINATE_RESIDUAL = 2.0**-117
LARGEST_DIMENSION = 2**33
NOISE_RESIDUAL = LARGEST_DIMENSION * COORDINATE_RESIDUAL
# The grid step lies in (σ/16, σ/8].
COARSEST_GRID = 8.0

# Two computations of one number may differ by the last digits of `exp`, `log` and `erfc` on two machines. One
# part in 10¹² leaves room for that and for nothing else: rounding to the safe side has already happened.
TOLERANCE = 1e-12
# An honest issuer does not overstate a number either. This leaves room for another version's rounding up.
OVERSTATEMENT_TOLERANCE = 1e-9

_SLACK = 2e-12
_SMALLEST_COMPUTED = 1e-300
_SQRT_2PI = math.sqrt(2 * math.pi)
_CONTINUED_FRACTION_FROM = 3.0
# Gauss–Legendre on [-1, 1], eight points: positive nodes and their weights.
_LEGENDRE = (
    (0.1834346424956498, 0.3626837833783620),
    (0.5255324099163290, 0.3137066458778873),
    (0.7966664774136267, 0.2223810344533745),
    (0.9602898564975363, 0.1012285362903763),
)


def delta_of(*, epsilon: float, shift: float) -> float:
    """Return the smallest δ for which (ε, δ)-indistinguishability from the reference holds at this shift.

    >>> round(delta_of(epsilon=1.0, shift=1.0), 12)
    0.126936737507
    >>> delta_of(epsilon=1.0, shift=0.0)
    0.0
    >>> f"{delta_of(epsilon=1.0, shift=0.0271):.6e}"
    '2.755515e-301'
    """
    _check("epsilon", epsilon, at_least=0.0)
    _check("shift", shift, at_least=0.0)
    if shift == 0:
        return 0.0
    a, b = _arguments(epsilon, shift)
    if shift <= 0.25 * max(1.0, b):
        return _density(a) * _mills_drop(a, shift)
    if a > 0:
        return _density(a) * (_mills(a) - _mills(b))
    return _upper_tail(a) - _density(a) * _mills(b)


def loss_exceeds(*, epsilon: float, shift: float) -> float:
    """Return the probability that the privacy loss of a release with this shift exceeds ε: Φ(s/2 - ε/s).

    The loss is the logarithm of how much likelier an outcome is under the release than under its reference.
    For two Gaussians it is N(s²/2, s²) in either direction. This probability is larger than δ, which counts
    only by how much outcomes beyond e^ε exceed it. It grows with the shift, so a bound on the shift bounds it
    too.

    >>> shift = shift_for(epsilon=1.0, delta=1e-5)
    >>> f"{loss_exceeds(epsilon=1.0, shift=shift):.2e}"
    '1.61e-04'
    >>> loss_exceeds(epsilon=1.0, shift=0.0)
    0.0
    """
    _check("epsilon", epsilon, at_least=0.0)
    _check("shift", shift, at_least=0.0)
    if shift == 0:
        return 0.0
    return _upper_tail(_arguments(epsilon, shift)[0])


def shift_for(*, epsilon: float, delta: float) -> float:
    """Return the largest shift Δ/σ that (ε, δ) allows, rounded down.

    >>> round(shift_for(epsilon=1.0, delta=1e-5), 9)
    0.268051123
    """
    _check("epsilon", epsilon, above=0.0)
    _check("delta", delta, at_least=_SMALLEST_COMPUTED, below=1.0)
    return _largest_shift(epsilon, delta)


@lru_cache(maxsize=4096)
def _largest_shift(epsilon: float, delta: float) -> float:
    """Search the largest shift. The search takes milliseconds, and most policies share their ε and δ."""
    # Twice the slack of `epsilon_for`, so that converting the shift back never gives more than `epsilon`.
    return _last_true(lambda s: _holds(epsilon=epsilon, delta=delta, shift=s, slack=2 * _SLACK))


def sigma_for(*, epsilon: float, delta: float, distance: float) -> float:
    """Return the σ at which two points at most `distance` apart are (ε, δ)-indistinguishable, rounded up.

    >>> round(sigma_for(epsilon=1.0, delta=1e-5, distance=1.0), 8)
    3.73063163
    """
    _check("distance", distance, above=0.0)
    shift = shift_for(epsilon=epsilon, delta=delta)
    sigma = distance / shift
    while math.isfinite(sigma) and Fraction(sigma) * Fraction(shift) < Fraction(distance):
        sigma = math.nextafter(sigma, math.inf)
    if not math.isfinite(sigma):
        raise ValueError("no finite sigma exists: the distance is too large for this epsilon and delta")
    return sigma


def epsilon_for(
    *, delta: float, shift: float, failure_probability: float = 0.0, residual: float = 0.0
) -> float:
    """Return the smallest ε that releases with this shift satisfy at `delta`, rounded up.

    The failure probability and the noise's residual are subtracted from δ first. The charge for the residual
    grows with ε. Raise `ValueError` if nothing is left of δ at any ε.

    >>> round(epsilon_for(delta=1e-5, shift=1.0), 8)
    4.3771781
    >>> epsilon_for(delta=1e-5, shift=0.0)
    0.0
    """
    _check("delta", delta - failure_probability, at_least=_SMALLEST_COMPUTED, below=1.0)
    _check("shift", shift, at_least=0.0)
    room = delta_left(delta=delta, failure_probability=failure_probability, residual=0.0, epsilon=0.0)
    if _holds(epsilon=0.0, delta=room, shift=shift):
        return 0.0
    low = _last_true(lambda e: not _holds(epsilon=e, delta=room, shift=shift))
    if residual == 0:
        return math.nextafter(low, math.inf)

    def charged(epsilon: float) -> bool:
        left = delta_left(
            delta=delta, failure_probability=failure_probability, residual=residual, epsilon=epsilon
        )
        return left > 0 and _holds(epsilon=epsilon, delta=left, shift=shift)

    # The charge grows with ε, so the valid ε form an interval. Find one point of it, then its lower end.
    high = next((e for e in (low * (1 + 2.0**-k) for k in range(40, -1, -1)) if e < 700 and charged(e)), None)
    if high is None:
        raise ValueError("the residual of the noise uses up delta at every epsilon")
    while high > math.nextafter(low, math.inf):
        middle = low + (high - low) / 2
        low, high = (low, middle) if charged(middle) else (middle, high)
    return high


def delta_left(*, delta: float, failure_probability: float, residual: float, epsilon: float) -> float:
    """Return the part of δ that is left for the exact Gaussian, rounded down.

    The failure probability p of the distance bound is subtracted. The residual t of the noise is charged as
    (1 + e^ε)·t: if P' and Q' are within t of P and Q, then P'(S) ≤ P(S) + t ≤ e^ε·Q(S) + δ + t
    ≤ e^ε·Q'(S) + δ + (1 + e^ε)·t.

    >>> delta_left(delta=1e-5, failure_probability=0.0, residual=0.0, epsilon=1.0)
    1e-05
    >>> delta_left(delta=1e-5, failure_probability=0.0, residual=2.0**-84, epsilon=1.0) < 1e-5
    True
    """
    _check("delta", delta, at_least=0.0, below=1.0)
    _check("failure probability", failure_probability, at_least=0.0, below=1.0)
    _check("residual", residual, at_least=0.0, below=1.0)
    _check("epsilon", epsilon, at_least=0.0, below=700.0)
    factor = Fraction(1) + Fraction(math.exp(epsilon)) * (1 + Fraction(1, 2**40))
    exact = Fraction(delta) - Fraction(failure_probability) - factor * Fraction(residual)
    left = float(exact)
    return left if Fraction(left) <= exact else math.nextafter(left, -math.inf)


def grid_step(sigma: float) -> float:
    """Return the step of the public grid for this σ: the power of two in (σ/16, σ/8].

    >>> grid_step(1.0), grid_step(8.0), grid_step(15.9), grid_step(16.0)
    (0.125, 1.0, 1.0, 2.0)
    """
    _check("sigma", sigma, at_least=2.0**-900)
    return math.ldexp(0.5, math.frexp(sigma / COARSEST_GRID)[1])


def classical_sigma(*, epsilon: float, delta: float, distance: float) -> float:
    """Return σ by the textbook calibration Δ·√(2·ln(1.25/δ))/ε, proved for ε < 1 (Dwork & Roth 2014, A.1).

    >>> round(classical_sigma(epsilon=0.5, delta=1e-5, distance=1.0), 8)
    9.68961053
    """
    _check("epsilon", epsilon, above=0.0, below=1.0)
    _check("delta", delta, at_least=_SMALLEST_COMPUTED, below=1.0)
    _check("distance", distance, above=0.0)
    return distance * math.sqrt(2 * math.log(1.25 / delta)) / epsilon * (1 + 2e-15)


def compose(shifts: Iterable[float]) -> float:
    """Return the composed shift of several releases, √(Σ s²), rounded up.

    Composition is exact for Gaussians, whether or not releases depend on earlier ones.

    >>> compose([3.0, 4.0])
    5.0
    >>> compose([])
    0.0
    """
    values = list(shifts)
    for value in values:
        _check("shift", value, at_least=0.0)
    total = math.hypot(*values)
    _check("composed shift", total, at_least=0.0)
    exact = sum((Fraction(value) ** 2 for value in values), start=Fraction(0))
    while Fraction(total) ** 2 < exact:
        total = math.nextafter(total, math.inf)
    return total


def understates(claimed: float, recomputed: float) -> bool:
    """Return whether a claimed number is too small by more than `TOLERANCE`."""
    return claimed < recomputed * (1 - TOLERANCE)


def overstates(claimed: float, recomputed: float) -> bool:
    """Return whether a claimed number is too large by more than `OVERSTATEMENT_TOLERANCE`."""
    return claimed > recomputed * (1 + OVERSTATEMENT_TOLERANCE)


def agrees(claimed: float, recomputed: float) -> bool:
    """Return whether a claimed number is neither understated nor overstated."""
    return not understates(claimed, recomputed) and not overstates(claimed, recomputed)


def _holds(*, epsilon: float, delta: float, shift: float, slack: float = _SLACK) -> bool:
    return delta_of(epsilon=epsilon, shift=shift) <= delta * (1 - slack)


def _arguments(epsilon: float, shift: float) -> tuple[float, float]:
    """Return a and b, each rounded once, because ε/s and s/2 may agree in all but their last digits."""
    ratio, half = Fraction(epsilon) / Fraction(shift), Fraction(shift) / 2
    try:
        return float(ratio - half), float(ratio + half)
    except OverflowError:
        return math.inf, math.inf


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / _SQRT_2PI if abs(x) < 40 else 0.0


def _upper_tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def _mills(x: float) -> float:
    """Return the Mills ratio M(x) = Φ(-x)/φ(x), for x > -1."""
    if x < _CONTINUED_FRACTION_FROM:
        return _upper_tail(x) * _SQRT_2PI * math.exp(x * x / 2)
    return 1 / (x + _fraction_tail(x))


def _mills_slope(x: float) -> float:
    """Return R(x) = 1 - x·M(x), for x > -1. From x = 3 on it is K/(x + K), which subtracts nothing."""
    if x < _CONTINUED_FRACTION_FROM:
        return 1 - x * _mills(x)
    tail = _fraction_tail(x)
    return tail / (x + tail)


def _fraction_tail(x: float) -> float:
    """Return K in M(x) = 1/(x + K), with Laplace's continued fraction K = 1/(x + 2/(x + 3/(x + …)))."""
    tail = 0.0
    for k in range(int(12 + 700 / (x * x)), 0, -1):
        tail = k / (x + tail)
    return tail


def _mills_drop(a: float, shift: float) -> float:
    """Return M(a) - M(a + s) as ∫ R, for s ≤ max(1, b)/4, where eight points reach machine precision."""
    half = shift / 2
    centre = a + half
    return half * math.fsum(
        weight * (_mills_slope(centre - half * node) + _mills_slope(centre + half * node))
        for node, weight in _LEGENDRE
    )


def _last_true(holds: Callable[[float], bool]) -> float:
    """Return the largest float at which `holds`, a predicate that turns false once as its argument grows."""
    low, high = 1.0, 1.0
    while not holds(low):
        low /= 16
        if low == 0:
            raise ValueError("parameters are beyond the range of double precision")
    while holds(high):
        high *= 16
        if not math.isfinite(high):
            raise ValueError("parameters are beyond the range of double precision")
    while high > math.nextafter(low, math.inf):
        middle = math.sqrt(low) * math.sqrt(high) if high > 4 * low else low + (high - low) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _check(
    name: str, value: float, *, at_least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> None:
    if not (math.isfinite(value) and at_least <= value and above < value < below):
        lower = f"above {above:g}" if above > -math.inf else f"at least {at_least:g}"
        upper = f" and below {below:g}" if below < math.inf else ""
        raise ValueError(f"{name} must be a finite number {lower}{upper}, got {value!r}")
