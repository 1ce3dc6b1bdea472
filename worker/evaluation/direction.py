"""The direction in which forgetting would fail, kept without keeping the parent.

A release deletes the weights it supersedes, and they tell of the rows that were erased, so a replay audit
cannot have them. What it needs is a unit vector u that was fixed before the noise was drawn and leans towards
parent - ŵ_R. A release therefore stores a projection P of the parent onto k directions of its space, with
Gaussian noise of twice the release's own σ on every number. The audit subtracts P·ŵ_R, which it has computed,
and lifts the difference back. The derivation, the loss of power and what the record tells are in
docs/evaluation.md.
"""

import hashlib
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from certificate.evidence import ReplayDirection

# Prime: no layer's width is a multiple, so a row of weights is spread over the buckets.
BUCKETS = 1021
NOISE = 2.0
"""Noise of the record in units of the release's σ: no number in it is as precise as the published file."""

_QUANTILE = 1.6449  # of the standard normal at 0.95
_DOMAIN = b"urn:lethe:replay-direction:v1\x00"
_CELLS = 8  # of the grid in one standard deviation of the record's noise, at least


@dataclass(frozen=True, slots=True)
class Lean:
    """A direction towards the parent, for an audit that does not have the parent's weights.

    `direction` (d,) must not depend on the release's noise. `reach` bounds ⟨u, parent - ŵ_R⟩ from below and
    `cosine` is about that of the angle between u and parent - ŵ_R; both enter statements of power alone.
    """

    direction: Tensor
    reach: float
    cosine: float


def direction_for(*, certificate_id: str, parent: Tensor, sigma: float) -> ReplayDirection | None:
    """Project the parent's weights (d,) for a later audit, with noise of its own from the operating system.

    Returns None where the numbers do not fit: weights some 10¹⁵ times the noise, or not finite.
    """
    flat = parent.detach().to("cpu", torch.float64).numpy()
    projection = Projection(certificate_id, len(flat))
    scale = NOISE * sigma
    step = 2.0 ** math.floor(math.log2(scale / _CELLS))
    gauss = random.SystemRandom().gauss
    noised = projection.apply(flat) + np.array([gauss(0.0, scale) for _ in range(projection.size)])
    units = np.rint(noised / step)
    if not np.all(np.abs(units) < 2.0**53):
        return None
    values = tuple(int(unit) for unit in units)
    return ReplayDirection(dimension=len(flat), noise=scale, step=step, values=values)


def towards_parent(
    record: ReplayDirection, *, certificate_id: str, replayed: Tensor, sigma: float
) -> Lean | None:
    """Turn a stored projection into the direction that the audit tests; None if it is of another model.

    With r = P·parent + noise - P·ŵ_R the direction is u = Pᵀr/‖r‖. ⟨u, parent - ŵ_R⟩ is not known; `reach`
    is a lower bound that holds with probability 0.95, by the normal approximation of a sum over k
    buckets.
    """
    flat = replayed.detach().to("cpu", torch.float64).numpy()
    projection = Projection(certificate_id, len(flat))
    if record.dimension != len(flat) or len(record.values) != projection.size:
        return None
    r = np.array(record.values, dtype=np.float64) * record.step - projection.apply(flat)
    length = float(np.linalg.norm(r)) / sigma
    variance = (record.noise**2 + record.step**2 / 12) / sigma**2
    signal = max(0.0, length**2 - projection.size * variance)  # estimates ‖P(parent - ŵ_R)‖²/σ²
    if not (math.isfinite(length) and length > 0):
        return None
    spread = math.sqrt(variance * signal + 2 * projection.size * variance**2)
    reach = max(0.0, signal - _QUANTILE * spread) / length
    whole = math.sqrt(signal * projection.most)  # estimates ‖parent - ŵ_R‖/σ
    return Lean(
        direction=torch.from_numpy(projection.lift(r)),
        reach=reach * sigma,
        cosine=min(1.0, reach / whole) if whole > 0 else 0.0,
    )


class Projection:
    """P: k orthonormal rows, each the signed mean of one bucket of coordinates times the root of its size.

    The signs are public and follow from the certificate's id, which is fresh for each release.
    """

    def __init__(self, certificate_id: str, dimension: int) -> None:
        self.size = min(BUCKETS, dimension)
        self._buckets = np.arange(dimension) % self.size
        counts = np.bincount(self._buckets, minlength=self.size)
        self.most = int(counts.max())
        self._weights = _signs(certificate_id, dimension) / np.sqrt(counts)[self._buckets]

    def apply(self, v: NDArray[np.float64]) -> NDArray[np.float64]:  # (d,) -> (k,)
        return np.bincount(self._buckets, weights=self._weights * v, minlength=self.size).astype(np.float64)

    def lift(self, r: NDArray[np.float64]) -> NDArray[np.float64]:  # (k,) -> (d,), the transpose
        return self._weights * r[self._buckets]


def _signs(certificate_id: str, dimension: int) -> NDArray[np.float64]:
    stream = hashlib.shake_256(_DOMAIN + certificate_id.encode()).digest(-(-dimension // 8))
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8))[:dimension]
    return 1.0 - 2.0 * bits.astype(np.float64)
