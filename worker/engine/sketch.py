"""A curvature sketch: the leading eigenvectors of a Hessian, prepared before they are needed.

After a version is published, the Hessian at its weights is known up to the rows that the next erasure
removes. A sketch holds r orthonormal rows U and eigenvalues s with H ≈ Uᵀ·diag(s)·U + λI. Between the
released weights and the minimiser there is little more than our own noise, which hardly changes the Hessian,
so each gradient that the sketch preconditions takes the next erasure most of the way
(`worker.engine.secants`).

The sketch comes from two block products with H in float32: a range finder and Nyström's approximation of H
from that range (Halko, Martinsson & Tropp 2011, alg. 4.3 and 5.5; used as a preconditioner by Frangella,
Tropp & Udell 2023). A block multiplies many vectors with each chunk of rows, which is much faster than one
product at a time. A chunk of a linearised network is linearised once for all of them.

For a network, H may have negative eigenvalues. Its sketch is of the Gauss-Newton matrix on a sample of the
rows instead, and preconditions the conjugate gradients of the trust-region method.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.linear import LinearObjective
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.linearised.operators import BlockOperator
from worker.engine.networks.objective import NetworkObjective, subsample
from worker.engine.objective import HessianOperator, Objective, Sampling
from worker.engine.subproblem import Quadratic, steihaug

BLOCK_VECTORS = 64  # vectors that are multiplied together
_BLOCK_ROWS = 512  # A chunk and its products stay in the cache.
_OUTSIDE_ROWS = 2048  # sampled for the curvature outside a sketch's directions
_OUTSIDE_LEAST = 24  # times as many rows there must be, or a sample costs too much beside a gradient
_OUTSIDE_RESIDUAL = 0.005  # of ‖g‖; what the sketch itself gets wrong is a few times as much
_OUTSIDE_PRODUCTS = 4
_NETWORK_ROWS = 4096  # sampled for the sketch of a network
_RESOLVED = 1e-5  # Eigenvalues below this share of the largest are rounding errors of float32.


@dataclass(frozen=True, slots=True)
class CurvatureSketch:
    """Eigenvectors (r, d) and eigenvalues (r,) of H - λI, in float32 and in descending order."""

    basis: Tensor  # (r, d), orthonormal rows
    values: Tensor  # (r,), at least 0

    def solve(self, g: Tensor, lam: float, product: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return an approximation of H⁻¹·g. (d,) -> (d,)

        Outside its directions, the sketch assumes the curvature of the weakest of them. That is too much for
        most, and a step that is too short does no harm. With the `product` v ↦ H·v over a sample of the rows,
        conjugate gradients solve for that part instead. Little curvature is left there, so a small sample and
        two products are enough.
        """
        single = g.to(self.basis.dtype)
        along = self.basis @ single
        if product is None:
            tail = float(self.values[-1]) + lam
            scale = tail / (self.values + lam) - 1
            return (single + (scale * along) @ self.basis).to(g.dtype) / tail
        inside, known = torch.stack([along / (self.values + lam), along]) @ self.basis
        outside = Quadratic((single - known).to(g.dtype), lambda v: self._across(product(v)))
        tolerance = _OUTSIDE_RESIDUAL * float(torch.linalg.vector_norm(g))
        solved = steihaug(outside, math.inf, tolerance=tolerance, limit=_OUTSIDE_PRODUCTS)
        step: Tensor = inside.to(g.dtype) - solved.step
        return step

    def _across(self, v: Tensor) -> Tensor:
        """Remove the sketch's directions from v. (d,) -> (d,)"""
        return v - ((self.basis @ v.to(self.basis.dtype)) @ self.basis).to(v.dtype)

    def expected_contraction(self, lam: float) -> float:
        """Return a rough guess of ‖g‖ after the first step, relative to before.

        The step is worst in the strongest direction that was left out. A tenth of that error is typical,
        because most of a gradient lies in directions that the sketch knows.
        """
        tail = float(self.values[-1])
        return 0.1 * tail / (tail + lam)


@dataclass(slots=True)
class RefinedSketch:
    """A sketch, with a sample of the rows for the curvature outside its directions."""

    sketch: CurvatureSketch
    sampled_hessian: Callable[[], HessianOperator | None]
    """Returns the Hessian at the current point over a fresh sample, or None if that does not pay."""
    passes: float = 0.0

    def solve(self, g: Tensor, lam: float) -> Tensor:
        """Return an approximation of H⁻¹·g. (d,) -> (d,)"""
        operator = self.sampled_hessian()
        if operator is None:
            return self.sketch.solve(g, lam)
        fraction = operator.fraction
        self.passes += fraction  # the logits at the point

        def product(v: Tensor) -> Tensor:
            self.passes += fraction
            return operator.product(v)

        return self.sketch.solve(g, lam, product)


def outside_hessian(objective: Objective, w: Tensor, seed: int) -> HessianOperator | None:
    """Return the Hessian at w over a small sample, to be used outside a sketch's directions.

    Returns None where its products would cost too much beside a gradient: for models that are not linear, and
    for few rows.
    """
    if not isinstance(objective, LinearObjective) or objective.rows.count < _OUTSIDE_LEAST * _OUTSIDE_ROWS:
        return None
    return objective.hessian(w, Sampling(_OUTSIDE_ROWS, seed))


class SketchCancelled(Exception):
    """The caller no longer wants the sketch."""


def build_sketch(
    objective: LinearObjective | LinearisedObjective | NetworkObjective,
    w: Tensor,
    *,
    rank: int,
    seed: int = 0,
    cancelled: Callable[[], bool] | None = None,
) -> CurvatureSketch | None:
    """Build a sketch of rank at most `rank` of the Hessian at w (d,), from this process's rows alone.

    It reads every row of a linear model 2·rank/BLOCK_VECTORS times, of a linearised network twice, and of a
    network a few thousand rows for each product. It asks often whether it is `cancelled`. Returns None if the
    products overflow or there is no curvature to sketch.
    """

    def check() -> None:
        if cancelled is not None and cancelled():
            raise SketchCancelled

    hessian = _operator(objective, w, check)
    generator = torch.Generator().manual_seed(seed)
    probes = torch.randn(min(rank, objective.dimension), objective.dimension, generator=generator)
    image = hessian.product(probes.to(objective.device))
    if not _usable(image):
        return None
    try:
        span = torch.linalg.qr(image.T)[0].T.contiguous()  # (r, d)
        return _nystrom(span, hessian.product(span))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None


def _operator(
    objective: LinearObjective | LinearisedObjective | NetworkObjective, w: Tensor, check: Callable[[], None]
) -> "BlockOperator | _BlockHessian | _SampledGaussNewton":
    if isinstance(objective, NetworkObjective):
        return _SampledGaussNewton(objective, w, check)
    if isinstance(objective, LinearisedObjective):
        return BlockOperator(objective, w, check)
    return _BlockHessian(objective, w, check)


def _nystrom(span: Tensor, image: Tensor) -> CurvatureSketch | None:
    """Return the eigenpairs of Z·(QᵀZ)⁺·Zᵀ with Q the span and Z = H·Q its image, both as rows (r, d)."""
    core, turn = torch.linalg.eigh(_symmetric(span @ image.T))
    kept = core > _RESOLVED * core[-1]
    if not _usable(image) or not bool(core[-1] > 0):
        return None
    factor = ((turn[:, kept] / core[kept].sqrt()).T.to(image.dtype)) @ image  # H ≈ factorᵀ·factor
    values, turn = torch.linalg.eigh(_symmetric(factor @ factor.T))
    basis = (turn / values.clamp(min=1e-300).sqrt()).T.to(image.dtype) @ factor
    return CurvatureSketch(basis.flip(0).contiguous(), values.clamp(min=0).flip(0).to(image.dtype))


def _symmetric(matrix: Tensor) -> Tensor:
    wide = matrix.to(torch.float64)
    return (wide + wide.T) / 2


def _usable(image: Tensor) -> bool:
    return math.isfinite(float(image.square().sum())) and bool((image != 0).any())


class _BlockHessian:
    """Products of H - λI with many vectors at once, in float32, with the curvature of each row kept."""

    def __init__(self, objective: LinearObjective, w: Tensor, before_block: Callable[[], None]) -> None:
        self._objective, self._before_block = objective, before_block
        self._states = [
            objective.curvature(objective.logits(w, x.to(objective.device, torch.float32)))
            for x, _ in objective.rows.chunks(_BLOCK_ROWS)
        ]

    def product(self, vectors: Tensor) -> Tensor:
        """Multiply each row of `vectors` with the Hessian of the mean loss. (k, d) -> (k, d)"""
        return torch.cat([self._block(block) for block in torch.split(vectors, BLOCK_VECTORS)])

    def _block(self, vectors: Tensor) -> Tensor:
        self._before_block()
        objective, count = self._objective, len(vectors)
        outputs, split = objective.outputs, objective.outputs * objective.rows.width
        weights = vectors[:, :split].reshape(count * outputs, -1)
        biases = vectors[:, split:, None]  # (k, outputs, 1), or empty without a bias
        total = torch.zeros_like(vectors)
        for state, (source, _) in zip(self._states, objective.rows.chunks(_BLOCK_ROWS), strict=True):
            x = source.to(objective.device, torch.float32)
            u = (weights @ x.T).view(count, outputs, -1)
            bent = objective.curve(state, u.add_(biases) if objective.bias else u)
            total[:, :split] += (bent.view(count * outputs, -1) @ x).view(count, -1)
            if objective.bias:
                total[:, split:] += bent.sum(-1)
        return total / objective.rows.count


class _SampledGaussNewton:
    """Products of a network's Gauss-Newton matrix with many vectors, in float32, over sampled rows."""

    def __init__(self, objective: NetworkObjective, w: Tensor, before_product: Callable[[], None]) -> None:
        self._before_product = before_product
        self._sample = subsample(objective, objective.module, _NETWORK_ROWS, alone=True)
        single = w.float()
        self._products = [
            self._sample.products.gauss_newton(single, (x, y, x.new_ones(len(x))))
            for x, y in self._sample.chunks(torch.float32)
        ]

    def product(self, vectors: Tensor) -> Tensor:
        """Multiply each row of `vectors` with the matrix. (k, d) -> (k, d)"""
        return torch.stack([self._image(vector) for vector in vectors]) / self._sample.rows.count

    def _image(self, vector: Tensor) -> Tensor:
        self._before_product()
        image = torch.zeros_like(vector)
        for product in self._products:
            image += product(vector)
        return image
