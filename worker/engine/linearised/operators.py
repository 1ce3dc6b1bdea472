"""Hessian operators of a linearised network: H·v = (1/n)·Σ JᵀSJ·v + λv, with J = ∂N(x; a) and S = ∂²ℓ/∂z²."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from worker.engine.linearised import kronecker
from worker.engine.linearised.automatic import AutomaticNetwork, AutomaticTangent
from worker.engine.linearised.layered import LayeredTangent
from worker.engine.objective import ApproximateInverse, Sampling

if TYPE_CHECKING:
    from worker.engine.linearised.objective import LinearisedObjective

_KEPT_CHUNKS = 16  # linearised chunks that an operator over all rows may keep
_PRECONDITIONER_ROWS = 2048
Tangent: TypeAlias = LayeredTangent | AutomaticTangent


class _ChunkOperator:
    """JᵀSJ summed over one chunk, with the linearisation and the logits at w kept."""

    def __init__(self, objective: "LinearisedObjective", w: Tensor, x: Tensor, weights: Tensor) -> None:
        self.objective, self.x, self.weights = objective, x, weights
        self.tangent: Tangent = objective.network.at(x)
        offset = (w - objective.anchor).to(x.dtype)
        image = self.tangent.push(objective.unflatten(offset))
        self.z = self.tangent.base + image  # (c, outputs)

    def product(self, v: Tensor) -> Tensor:
        """Return JᵀSJ·v over the chunk. (d,) -> (d,)"""
        u = self.tangent.push(self.objective.unflatten(v.to(self.x.dtype)))
        bent = self.objective.loss.curve(self.z, u) * self.weights[:, None]
        return self.tangent.pull(bent)


class SampledOperator:
    """Hessian over rows kept in memory in float32 and linearised once. Vectors are float64 outside."""

    def __init__(
        self,
        objective: "LinearisedObjective",
        w: Tensor,
        chunks: list[tuple[Tensor, Tensor]],
        sampling: Sampling,
    ) -> None:
        self._objective, self._seed = objective, sampling.seed
        self._chunks = [_ChunkOperator(objective, w, x, weights) for x, weights in chunks]
        self.fraction = sum(len(x) for x, _ in chunks) / objective.rows.count

    def product(self, v: Tensor) -> Tensor:
        """Return H·v over the sample. (d,) -> (d,)"""
        image = torch.zeros_like(v)
        for chunk in self._chunks:
            image += chunk.product(v)
        return self._objective.reduce(image) / self._objective.total + self._objective.lam * v

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:  # noqa: ARG002
        """Build the Kronecker preconditioner from at most `_PRECONDITIONER_ROWS` rows of the sample."""
        return _preconditioner(self._objective, self._chunks, self._seed)


class StreamedOperator:
    """Hessian over all rows, in float32 until that overflows, then in float64. Vectors are float64.

    The first chunks are linearised once and kept. The others are read and linearised again for each product,
    so that memory stays bounded.
    """

    fraction = 1.0

    def __init__(
        self, objective: "LinearisedObjective", w: Tensor, dtype: torch.dtype = torch.float32
    ) -> None:
        self._objective, self._w, self._dtype = objective, w, dtype
        self._kept: list[_ChunkOperator] = []
        self._chunk_rows = objective.chunk_rows

    def product(self, v: Tensor) -> Tensor:
        """Return H·v over all rows. (d,) -> (d,)"""
        image = torch.zeros_like(v)
        for chunk in self._operators():
            image += chunk.product(v)
        product = self._objective.reduce(image) / self._objective.total + self._objective.lam * v
        if self._dtype == torch.float64 or bool(torch.isfinite(product).all()):
            return product
        self._dtype, self._kept = torch.float64, []  # every rank sees the same sum and does the same
        return self.product(v)

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:  # noqa: ARG002
        """Build the Kronecker preconditioner from rows spread evenly over this rank's data."""
        objective = self._objective
        stride = -(-objective.rows.count // _PRECONDITIONER_ROWS)
        features, _ = objective.rows.sample(torch.arange(0, objective.rows.count, stride))
        chunks = [
            _ChunkOperator(
                objective,
                self._w,
                x.to(objective.device, torch.float32),
                torch.full((len(x),), float(stride), device=objective.device),
            )
            for x in torch.split(features, objective.chunk_rows)
        ]
        return _preconditioner(objective, chunks, seed=0)

    def _operators(self) -> Iterator[_ChunkOperator]:
        objective, room = self._objective, _KEPT_CHUNKS
        if objective.chunk_rows != self._chunk_rows:  # Memory ran short and chunks were halved: keep nothing.
            self._kept, room = [], 0
        done = len(self._kept)
        yield from self._kept
        if done * objective.chunk_rows >= objective.rows.count:
            return
        for index, (x, _) in enumerate(objective.chunks(self._dtype, skip=done), done):
            operator = _ChunkOperator(objective, self._w, x, x.new_ones(len(x)))
            if index < room:
                self._kept.append(operator)
            yield operator


class BlockOperator:
    """Products of H - λI with many vectors, in float32, from this process's rows alone.

    Each chunk is linearised once for all vectors of a block. `before_chunk` is called before each chunk and
    may raise to stop.
    """

    def __init__(self, objective: "LinearisedObjective", w: Tensor, before_chunk: Callable[[], None]) -> None:
        self._objective, self._w, self._before_chunk = objective, w, before_chunk

    def product(self, vectors: Tensor) -> Tensor:
        """Multiply each row of `vectors` with the Hessian of the mean loss. (k, d) -> (k, d)"""
        objective, total = self._objective, torch.zeros_like(vectors)
        for x, _ in objective.chunks(torch.float32):
            self._before_chunk()
            chunk = _ChunkOperator(objective, self._w, x, x.new_ones(len(x)))
            for image, vector in zip(total, vectors, strict=True):
                image += chunk.product(vector).to(image.dtype)
        return total / objective.rows.count


def _preconditioner(
    objective: "LinearisedObjective", chunks: list[_ChunkOperator], seed: int
) -> ApproximateInverse | None:
    """Build the inverse of the damped Kronecker factors from the first rows of these chunks."""
    factors: dict[str, kronecker.Factors] = {}
    diagonal = torch.zeros(objective.dimension, dtype=torch.float64, device=objective.device)
    generator = torch.Generator().manual_seed(seed)
    rows, share, curved = 0, 0.0, 0.0
    for chunk in chunks:
        if rows >= _PRECONDITIONER_ROWS:
            break
        signs = torch.randint(0, 2, chunk.z.shape, generator=generator).to(chunk.z) * 2 - 1
        q = objective.loss.curve_root(chunk.z, signs) * chunk.weights.sqrt()[:, None]
        traces = objective.loss.curve_root(chunk.z, signs).square().sum(1) * chunk.weights  # ≈ tr S
        for name, (columns, delta, positions) in _factors(objective, chunk, q).items():
            bias = f"{name}.bias" in objective.shapes
            found = kronecker.factors_of(columns, delta, positions, traces, bias=bias)
            known = factors.get(name)
            factors[name] = found if known is None else known.plus(found)
        diagonal += chunk.tangent.pull(q).square()
        rows, share, curved = (
            rows + len(chunk.x),
            share + float(chunk.weights.sum()),
            curved + float(traces.sum()),
        )
    if not (share > 0 and curved > 0):
        return None
    scaled = {name: found.scaled(inputs=1 / curved, outputs=1 / share) for name, found in factors.items()}
    apply = kronecker.build(scaled, diagonal / share, objective.shapes, lam=objective.lam)
    # Forward, pullback for the factors and pullback for the diagonal.
    return None if apply is None else ApproximateInverse(apply, passes=3 * rows / objective.rows.count)


def _factors(
    objective: "LinearisedObjective", chunk: _ChunkOperator, q: Tensor
) -> dict[str, tuple[Tensor, Tensor, int]]:
    """Return columns, δ and positions of each moving layer for q pulled back."""
    if isinstance(chunk.tangent, LayeredTangent):
        return chunk.tangent.factors(q)
    assert isinstance(objective.network, AutomaticNetwork)
    return objective.network.layer_factors(chunk.x, lambda _: q)
