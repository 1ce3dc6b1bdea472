"""Matrix-free products of a network's Hessian, by forward over reverse differentiation.

    H·v   = d/dt ∇f(w + t·v)
    GGN·v = Jᵀ·(∂²ℓ/∂z²)·J·v            J = ∂z/∂w; positive semi-definite, the loss being convex in z
    S·v   = d/dt Jᵀ(w + t·v)·q           q = ∂ℓ/∂z held fixed at w: what is left, H = GGN + S + λI

S costs no more than H: holding q fixed drops the Gauss–Newton part before it is ever formed. An MLP and an
AllCNN have their products written out (`dense`, `convolutional`); others get them from torch.func.
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
Chunk: TypeAlias = tuple[Tensor, Tensor, Tensor]  # rows, targets, and how much each row counts
Linearise: TypeAlias = Callable[[Tensor, Chunk], Product]
_KEPT_CHUNKS = 16  # whose linearisation a streamed operator may hold
_Along: TypeAlias = Callable[..., Tensor]  # w, v, x, y, weights -> (d,)


class ChunkProducts:
    """H·v, GGN·v and S·v summed over one chunk, without λ; compiled on first use if asked for."""

    def __init__(self, objective: "NetworkObjective", *, compiled: bool) -> None:
        self._objective, self._logits, self._loss = objective, objective.logits, objective.loss
        self._by_hand = objective.spec is not None and not compiled
        wrap: Callable[[_Along], _Along] = torch.compile if compiled else _as_is
        self._slope, self._ggn, self._rest = map(wrap, (self._along_slope, self._along_ggn, self._along_rest))

    def hessian(self, w: Tensor, chunk: Chunk) -> Product:
        if self._by_hand:
            curvature = self._written_out(w, chunk)
            return lambda v: curvature.product(self._objective.unflatten(v))
        return lambda v: self._slope(w, v, *chunk)

    def remainder(self, w: Tensor, chunk: Chunk) -> Product:
        if self._by_hand:
            curvature = self._written_out(w, chunk)
            return lambda v: curvature.product(self._objective.unflatten(v), remainder=True)
        return lambda v: self._rest(w, v, *chunk)

    def gauss_newton(self, w: Tensor, chunk: Chunk) -> Product:
        return lambda v: self._ggn(w, v, *chunk)

    def _written_out(self, w: Tensor, chunk: Chunk) -> DenseCurvature | ConvolutionalCurvature:
        spec, parts = self._objective.spec, self._objective.unflatten(w)
        assert spec is not None
        if isinstance(spec, Mlp):
            return DenseCurvature(spec, self._loss, parts, *chunk)
        return ConvolutionalCurvature(spec, self._loss, parts, *chunk)

    def _along_slope(self, w: Tensor, v: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        slope = grad(lambda at: self._loss.each(self._logits(at, x), y) @ weights)
        return _along(slope, w, v)[1]

    def _along_ggn(self, w: Tensor, v: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        z, u = _along(lambda at: self._logits(at, x), w, v)
        pull = vjp(lambda at: self._logits(at, x), w)[1]
        image: Tensor = pull(self._loss.curve(z, u) * weights[:, None])[0]
        return image

    def _along_rest(self, w: Tensor, v: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        q = self._loss.residual(self._logits(w, x), y).q * weights[:, None]
        slope = grad(lambda at: (self._logits(at, x) * q).sum())
        return _along(slope, w, v)[1]


class SampledOperator:
    """Rows held in memory in float32 and linearised once; vectors go in and out in float64."""

    def __init__(self, objective: "NetworkObjective", w: Tensor, chunks: Iterable[Chunk], count: int) -> None:
        self._objective = objective
        single = w.float()
        self._products = [objective.products.hessian(single, chunk) for chunk in chunks]
        self.fraction = count / objective.rows.count

    def product(self, v: Tensor) -> Tensor:  # (d,) -> (d,)
        image, direction = torch.zeros_like(v), v.float()
        for product in self._products:
            image += product(direction)
        return self._objective.reduce(image) / self._objective.total + self._objective.lam * v

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:  # noqa: ARG002
        """None: a network's curvature has no structure cheap enough to invert."""
        return None


class StreamedOperator:
    """All rows in float64, plus `shift`·v.

    The first chunks are linearised once, which halves the price of a product where they are all there are;
    the others are read and linearised anew each time, so that memory stays bounded.
    """

    fraction = 1.0

    def __init__(self, objective: "NetworkObjective", w: Tensor, linearise: Linearise, shift: float) -> None:
        self._objective, self._w, self._linearise, self._shift = objective, w, linearise, shift
        self._kept: list[Product] = []
        self._chunk_rows = objective.chunk_rows

    def product(self, v: Tensor) -> Tensor:  # (d,) -> (d,)
        image = torch.zeros_like(v)
        for product in self._products():
            image += product(v)
        return self._objective.reduce(image) / self._objective.total + self._shift * v

    def _products(self) -> Iterator[Product]:
        objective, room = self._objective, _KEPT_CHUNKS
        if objective.chunk_rows != self._chunk_rows:  # memory has run short: keep nothing, of either size
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
        """None, as for a sample."""


def _along(function: Callable[[Tensor], Tensor], w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The function at w, and its derivative along v."""
    found = jvp(function, (w,), (v,))
    return found[0], found[1]


def _as_is(product: _Along) -> _Along:
    return product
