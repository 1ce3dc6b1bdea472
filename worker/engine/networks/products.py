"""Matrix-free products with the Hessian of a network, by forward-over-reverse differentiation.

    H·v   = d/dt ∇f(w + t·v)
    GGN·v = Jᵀ·(∂²ℓ/∂z²)·J·v            J = ∂z/∂w; positive semi-definite because the loss is convex in z
    S·v   = d/dt Jᵀ(w + t·v)·q           q = ∂ℓ/∂z held fixed at w; the remainder in H = GGN + S + λI

S costs no more than H: holding q fixed drops the Gauss–Newton part before it is formed. The products of an
MLP and an AllCNN are written out (`dense`, `convolutional`), others come from torch.func.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from worker.engine.networks.architectures import Mlp
from worker.engine.networks.convolutional import ConvolutionalCurvature
from worker.engine.networks.dense import DenseCurvature
from worker.engine.objective import ApproximateInverse

if TYPE_CHECKING:
    from worker.engine.networks.objective import NetworkObjective

Product: TypeAlias = Callable[[Tensor], Tensor]  # (d,) -> (d,)
Chunk: TypeAlias = tuple[Tensor, Tensor, Tensor]  # rows, targets and row weights
Linearise: TypeAlias = Callable[[Tensor, Chunk], Product]
KEPT_CHUNKS = 16  # linearised chunks that a streamed operator may keep
_ChunkProduct: TypeAlias = Callable[..., Tensor]  # w, v, x, y, weights -> (d,)


class ChunkProducts:
    """Products with H, GGN and S summed over one chunk, without the λ term.

    Compiled on first use if requested.
    """

    def __init__(self, objective: "NetworkObjective", *, compiled: bool) -> None:
        self._objective, self._logits, self._loss = objective, objective.logits, objective.loss
        self._explicit = objective.spec is not None and not compiled
        wrap: Callable[[_ChunkProduct], _ChunkProduct] = torch.compile if compiled else _uncompiled
        self._hessian, self._ggn, self._remainder = map(
            wrap, (self._hessian_product, self._gauss_newton_product, self._remainder_product)
        )

    def hessian(self, w: Tensor, chunk: Chunk) -> Product:
        """Return v ↦ H·v over the chunk, linearised at w."""
        if self._explicit:
            curvature = self._linearise_explicitly(w, chunk)
            return lambda v: curvature.product(self._objective.unflatten(v))
        return lambda v: self._hessian(w, v, *chunk)

    def remainder(self, w: Tensor, chunk: Chunk) -> Product:
        """Return v ↦ S·v over the chunk, linearised at w."""
        if self._explicit:
            curvature = self._linearise_explicitly(w, chunk)
            return lambda v: curvature.product(self._objective.unflatten(v), remainder=True)
        return lambda v: self._remainder(w, v, *chunk)

    def gauss_newton(self, w: Tensor, chunk: Chunk) -> Product:
        """Return v ↦ GGN·v over the chunk, linearised at w."""
        return lambda v: self._ggn(w, v, *chunk)

    def _linearise_explicitly(self, w: Tensor, chunk: Chunk) -> DenseCurvature | ConvolutionalCurvature:
        spec, parts = self._objective.spec, self._objective.unflatten(w)
        assert spec is not None
        if isinstance(spec, Mlp):
            return DenseCurvature(spec, self._loss, parts, *chunk)
        return ConvolutionalCurvature(spec, self._loss, parts, *chunk)

    def _hessian_product(self, w: Tensor, v: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        slope = grad(lambda at: self._loss.each(self._logits(at, x), y) @ weights)
        return _derivative_along(slope, w, v)[1]

    def _gauss_newton_product(self, w: Tensor, v: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        z, u = _derivative_along(lambda at: self._logits(at, x), w, v)
        pull = vjp(lambda at: self._logits(at, x), w)[1]
        image: Tensor = pull(self._loss.curve(z, u) * weights[:, None])[0]
        return image

    def _remainder_product(self, w: Tensor, v: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        q = self._loss.residual(self._logits(w, x), y).q * weights[:, None]
        slope = grad(lambda at: (self._logits(at, x) * q).sum())
        return _derivative_along(slope, w, v)[1]


class SampledOperator:
    """Hessian over rows kept in memory in float32 and linearised once. Vectors are float64 outside."""

    def __init__(self, objective: "NetworkObjective", w: Tensor, chunks: Iterable[Chunk], count: int) -> None:
        self._objective = objective
        single = w.float()
        self._products = [objective.products.hessian(single, chunk) for chunk in chunks]
        self.fraction = count / objective.rows.count

    def product(self, v: Tensor) -> Tensor:
        """Return H·v over the sample. (d,) -> (d,)"""
        image, direction = torch.zeros_like(v), v.float()
        for product in self._products:
            image += product(direction)
        return self._objective.reduce(image) / self._objective.total + self._objective.lam * v

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:  # noqa: ARG002
        """Return None: a network's curvature has no structure that is cheap to invert."""
        return None


class StreamedOperator:
    """Operator over all rows in float64, plus `diagonal`·v.

    The first chunks are linearised once and kept, which halves the cost of a product if all fit. The others
    are read and linearised again for each product, so that memory stays bounded.
    """

    fraction = 1.0

    def __init__(
        self, objective: "NetworkObjective", w: Tensor, linearise: Linearise, diagonal: float
    ) -> None:
        self._objective, self._w, self._linearise, self._diagonal = objective, w, linearise, diagonal
        self._kept: list[Product] = []
        self._chunk_rows = objective.chunk_rows

    def product(self, v: Tensor) -> Tensor:
        """Return the product over all rows. (d,) -> (d,)"""
        image = torch.zeros_like(v)
        for product in self._products():
            image += product(v)
        return self._objective.reduce(image) / self._objective.total + self._diagonal * v

    def _products(self) -> Iterator[Product]:
        objective, room = self._objective, KEPT_CHUNKS
        if objective.chunk_rows != self._chunk_rows:  # Memory ran short and chunks were halved: keep nothing.
            self._kept, room = [], 0
        done = len(self._kept)
        yield from self._kept
        if done * objective.chunk_rows >= objective.rows.count:
            return
        for index, (x, y) in enumerate(objective.chunks(skip=done), done):
            product = self._linearise(self._w, (x, y, x.new_ones(len(x))))
            if index < room:
                self._kept.append(product)
            yield product

    def approximate_inverse(self, rank: int) -> None:
        """Return None: a network's curvature has no structure that is cheap to invert."""


def _derivative_along(function: Callable[[Tensor], Tensor], w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the function at w and its derivative along v."""
    pair = jvp(function, (w,), (v,))
    return pair[0], pair[1]


def _uncompiled(product: _ChunkProduct) -> _ChunkProduct:
    return product
