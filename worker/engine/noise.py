"""Gaussian noise on a public grid, rounded exactly as real arithmetic would round it.

The release of w is g·round((w + σZ)/g) with Z standard normal. Rounding to a public grid is post-processing
of the exact Gaussian mechanism, so its (ε, δ) applies unchanged. Adding floating-point noise to
floating-point weights would be unsafe: the set of doubles such a sum can reach depends on w and can reveal
it.

Each pair of normals is defined as the exact Box–Muller image of 256 random bits. It is evaluated in double
precision with polynomials whose error is bounded from IEEE 754 alone (`TOLERANCE`, derived in docs/maths.md,
section 4). A coordinate too close to a rounding boundary is evaluated again in interval arithmetic until the
result is certain. The published integers are therefore those of real arithmetic on every machine.

Privacy rests on the bits being unpredictable. Each release takes a fresh 256-bit key from the operating
system, expands it with ChaCha20 and discards it. The key is never returned, stored or logged, and `noised`
offers no way to supply one. A block cipher in counter mode would not do: it never repeats a block, and over
2³³ weights that bias exceeds the residual of docs/maths.md.
"""

import math
import os
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from mpmath.ctx_iv import MPIntervalContext
from mpmath.ctx_mp import MPContext
from torch import Tensor

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

LARGEST_STEPS = 2.0**50  # bound on |w|/g, so that integer and fraction fit into two doubles
TOLERANCE = 2.0**-39  # in grid steps: bound on the error of the computed (w + σz)/g

_BLOCK = 2**15  # pairs per block, so that a block fits into the processor's cache
_WORDS_PER_PAIR = 4  # 64-bit words: two for the radius, two for the angle
_ROOT_HALF = math.sqrt(0.5)
_QUARTER_PI = math.pi / 4
_LOW_61 = np.uint64(2**61 - 1)

# artanh(s)/s in s² for |s| ≤ 0.1716, sin(α)/α and cos(α) in α² for 0 ≤ α ≤ π/4. Omitted terms are below 2⁻⁶².
_ARTANH = tuple(1 / (2 * k + 1) for k in range(13))
_SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(10))
_COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(11))


class ByteSource(Protocol):
    """Callable that returns `count` fresh random bytes."""

    def __call__(self, count: int) -> bytes: ...


def noised(w: Tensor, *, sigma: float, step: float) -> Tensor:
    """Draw round((w + σZ)/g) with a fresh key that is discarded. (d,) float64 -> (d,) int64"""
    return rounded(w, sigma=sigma, step=step, source=_keystream())


def on_grid(steps: Tensor, step: float) -> Tensor:
    """Return steps·g exactly, in float32 if every weight fits and in float64 otherwise. (d,) int64 -> (d,)"""
    largest = int(steps.abs().max()) if steps.numel() else 0
    fits = largest < 2**24 and step >= 2.0**-126 and largest * step < torch.finfo(torch.float32).max
    weights = steps.to(torch.float64) * step
    return weights.to(torch.float32) if fits else weights


def draw(count: int) -> Tensor:
    """Draw standard normals for random directions. Releases use `noised` instead. -> (count,)"""
    return gaussian(count, source=_keystream())


def gaussian(count: int, *, source: ByteSource) -> Tensor:
    """Compute the standard normals defined by `source`, to a relative error of 2⁻⁴⁷. -> (count,)"""
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    values = np.empty(count)
    for start in range(0, count, 2 * _BLOCK):
        block = values[start : start + 2 * _BLOCK]
        block[:] = _normals(_words(source, (len(block) + 1) // 2))[: len(block)]
    return torch.from_numpy(values)


def rounded(
    w: Tensor, *, sigma: float, step: float, source: ByteSource, tolerance: float = TOLERANCE
) -> Tensor:
    """Compute round((w + σZ)/g) for the Z that the bits of `source` define. (d,) float64 -> (d,) int64

    A larger `tolerance` sends more coordinates to interval arithmetic but never changes the result.
    """
    centre = w.detach().cpu().to(torch.float64).numpy() / step
    _check(centre, sigma, step)
    scale = sigma / step  # exact, because the step is a power of two
    steps = np.empty(len(centre), np.int64)
    for start in range(0, len(centre), 2 * _BLOCK):
        block = centre[start : start + 2 * _BLOCK]
        pairs = (len(block) + 1) // 2
        words = _words(source, pairs)
        scaled_noise = scale * _normals(words)[: len(block)]
        steps[start : start + len(block)] = _nearest(block, scaled_noise, scale, words, tolerance)
    return torch.from_numpy(steps)


def _check(centre: Floats, sigma: float, step: float) -> None:
    if not (math.isfinite(sigma) and sigma > 0 and math.frexp(step)[0] == 0.5 and 8 <= sigma / step < 16):
        raise ValueError("the grid step is the power of two in (sigma/16, sigma/8]")
    if not np.isfinite(centre).all() or (len(centre) and float(np.abs(centre).max()) >= LARGEST_STEPS):
        raise ValueError("a weight is not finite, or too large for the grid")


def _words(source: ByteSource, pairs: int) -> Words:
    words = np.frombuffer(source(8 * _WORDS_PER_PAIR * pairs), "<u8").astype(np.uint64)
    return words.reshape(_WORDS_PER_PAIR, pairs)


def _nearest(centre: Floats, scaled_noise: Floats, scale: float, words: Words, tolerance: float) -> Floats:
    """Round centre + scaled_noise by an error-free sum (Knuth 1969, theorem 4.2.2 B)."""
    total = centre + scaled_noise
    back = total - centre
    error = (centre - (total - back)) + (scaled_noise - back)
    nearest = np.rint(total)
    fraction = (total - nearest) + error
    nearest += (fraction > 0.5).astype(np.float64) - (fraction < -0.5).astype(np.float64)
    for place in np.flatnonzero(np.abs(np.abs(fraction) - 0.5) <= tolerance):
        nearest[place] = _decide_exactly(float(centre[place]), scale, words, int(place))
    return nearest


def _normals(words: Words) -> Floats:
    """Return standard normals from (4, pairs) words: first all cosines, then all sines. -> (2·pairs,)"""
    radius = np.sqrt(2 * _minus_log(words[0], words[1]))
    cosine, sine = _on_circle(words[2], words[3])
    return np.concatenate([radius * cosine, radius * sine])


def _minus_log(high: Words, low: Words) -> Floats:
    """Return -ln u for u = (n + ½)/2¹²⁸, with a relative error below 2⁻⁴⁸.

    Near 1, u is written as 1 - q with q from the complemented bits, so that no digits are lost.
    """
    u = _unit(high, low, 64)
    q = _unit(~high, ~low, 64)
    mantissa, exponent = np.frexp(u)
    small = mantissa < _ROOT_HALF
    mantissa = np.where(small, 2 * mantissa, mantissa)
    exponent = exponent - small
    near_one = exponent == 0
    s = np.where(near_one, -q / (2 - q), (mantissa - 1) / (mantissa + 1))
    return -(exponent * math.log(2) + 2 * s * _polynomial(_ARTANH, s * s))


def _on_circle(high: Words, low: Words) -> tuple[Floats, Floats]:
    """Return cos and sin of 2πv for v = (n + ½)/2¹²⁸, with a relative error below 2⁻⁴⁹.

    The top three bits give the octant. In every other octant the angle is measured from its far end.
    """
    octant = high >> np.uint64(61)
    odd = (octant & np.uint64(1)).astype(bool)
    fraction = _unit(np.where(odd, ~high, high) & _LOW_61, np.where(odd, ~low, low), 61)
    angle = fraction * _QUARTER_PI
    square = angle * angle
    sine, cosine = angle * _polynomial(_SIN, square), _polynomial(_COS, square)
    swapped = ((octant + np.uint64(1)) & np.uint64(2)).astype(bool)  # octants 1, 2, 5, 6
    cosine, sine = np.where(swapped, sine, cosine), np.where(swapped, cosine, sine)
    left = (octant >= 2) & (octant < 6)
    return np.where(left, -cosine, cosine), np.where(octant >= 4, -sine, sine)


def _unit(high: Words, low: Words, bits: int) -> Floats:
    """Return (high·2⁶⁴ + low + ½)/2^(bits + 64), with a relative error below 2⁻⁵¹."""
    tail = (low.astype(np.float64) + 0.5) * 2.0 ** -(bits + 64)
    return high.astype(np.float64) * 2.0**-bits + tail


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value *= x
        value += coefficient
    return value


def _decide_exactly(centre: float, scale: float, words: Words, place: int) -> int:
    """Return the nearest integer from interval arithmetic, with more bits until both interval ends agree.

    The loop ends: ln u is transcendental for rational u ≠ 1 (Lindemann), and the cosine of a rational angle
    is algebraic and never 0 here. So the exact value is transcendental and lies on no boundary.
    """
    pairs, context = words.shape[1], MPIntervalContext()
    high, low, angle_high, angle_low = (int(word) for word in words[:, place % pairs])
    turn = context.cos if place < pairs else context.sin
    for bits in (2**k for k in count(8)):
        context.prec = bits
        u = context.mpf(2 * (high * 2**64 + low) + 1) / 2**129
        v = context.mpf(2 * (angle_high * 2**64 + angle_low) + 1) / 2**129
        value = centre + scale * context.sqrt(-2 * context.log(u)) * turn(2 * context.pi * v)
        lower, upper = (_floor(end, bits) for end in ((value + 0.5).a, (value + 0.5).b))
        if lower == upper:
            return lower
    raise AssertionError("unreachable")


def _floor(end: object, bits: int) -> int:
    context = MPContext()
    context.prec = bits
    return int(context.floor(context.mpf(end)))


def _keystream() -> ByteSource:
    start = bytes(4) + os.urandom(12)  # the block counter, then the nonce
    encryptor = Cipher(algorithms.ChaCha20(os.urandom(32), start), mode=None).encryptor()

    def read(count: int) -> bytes:
        return encryptor.update(bytes(count))

    return read
