"""The direction towards the parent model, stored for a later audit without storing the parent.

A release deletes the weights it supersedes, because they carry information about the erased rows. A replay
audit therefore cannot use them. It needs a unit vector u that was fixed before the noise was drawn and points
roughly towards parent - ŵ_R. So a release stores a projection P of the parent onto k directions, with
Gaussian noise of twice the release's own σ on every number. The audit subtracts P·ŵ_R, which it has computed,
and lifts the difference back. docs/evaluation.md has the derivation, the loss of power and what the record
reveals.
"""

import hashlib
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lethe.certificate.evidence import ReplayDirection

# Prime, so that no layer width is a multiple of it and every row of weights is spread over the buckets.
BUCKETS = 1021
NOISE = 2.0
"""Noise of the record in units of the release's σ. No number in it is as precise as the published file."""

_QUANTILE = 1.6449  # of the standard normal at 0.95
_DOMAIN = b"urn:lethe:replay-direction:v1\x00"
_CELLS = 8  # least number of grid cells per standard deviation of the record's noise


@dataclass(frozen=True, slots=True)
class ParentDirection:
    """A direction towards the parent, for an audit that does not have the parent's weights.

    `direction` (d,) must not depend on the noise of the release. `reach` is a lower bound on ⟨u, parent -
    ŵ_R⟩, and `cosine` estimates the cosine of the angle between u and parent - ŵ_R. Both are used only for
    statements of power.
    """

    direction: Tensor
    reach: float
    cosine: float


def project_parent(*, certificate_id: str, parent: Tensor, sigma: float) -> ReplayDirection | None:
    """Project the parent's weights (d,) for a later audit, with fresh noise from the operating system.

    Returns None if the numbers do not fit: weights about 10¹⁵ times the noise, or not finite.
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


def recover_direction(
    record: ReplayDirection, *, certificate_id: str, replayed: Tensor, sigma: float
) -> ParentDirection | None:
    """Turn a stored projection into the direction that the audit tests.

    Returns None if the record belongs to another model.

    With r = P·parent + noise - P·ŵ_R the direction is u = Pᵀr/‖r‖. ⟨u, parent - ŵ_R⟩ is unknown. `reach` is a
    lower bound that holds with probability 0.95, by the normal approximation of a sum over k buckets.
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
    return ParentDirection(
        direction=torch.from_numpy(projection.lift(r)),
        reach=reach * sigma,
        cosine=min(1.0, reach / whole) if whole > 0 else 0.0,
    )


class Projection:
    """P, a projection onto k orthonormal rows.

    Each row is the signed mean of one bucket of coordinates times the square root of its size.

    The signs are public and derive from the certificate's id, which is fresh for each release.
    """

    def __init__(self, certificate_id: str, dimension: int) -> None:
        self.size = min(BUCKETS, dimension)
        self._buckets = np.arange(dimension) % self.size
        counts = np.bincount(self._buckets, minlength=self.size)
        self.most = int(counts.max())
        self._weights = _signs(certificate_id, dimension) / np.sqrt(counts)[self._buckets]

    def apply(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return P·v. (d,) -> (k,)"""
        return np.bincount(self._buckets, weights=self._weights * v, minlength=self.size).astype(np.float64)

    def lift(self, r: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Pᵀ·r. (k,) -> (d,)"""
        return self._weights * r[self._buckets]


def _signs(certificate_id: str, dimension: int) -> NDArray[np.float64]:
    stream = hashlib.shake_256(_DOMAIN + certificate_id.encode()).digest(-(-dimension // 8))
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8))[:dimension]
    return 1.0 - 2.0 * bits.astype(np.float64)
