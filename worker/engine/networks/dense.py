"""Hessian products of an MLP at a fixed point and chunk, with everything independent of v precomputed.

Primes denote tangents along v. Forwards, Z' = A·Vᵀ + c + A'·Wᵀ and A' = φ'(Z)∘Z'. Backwards, with q' =
(∂²ℓ/∂z²)·Z'_L,

    ∂W' = δ'ᵀ·A + δᵀ·A',    δ'_below = (δ'·W + δ·V)∘φ'(Z) + (δ·W)∘φ''(Z)∘Z'

(Pearlmutter 1994). These are the products that automatic differentiation gives, at about a third of the cost.
Setting q' = 0 leaves S, the part of H that Gauss–Newton drops.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from worker.engine.networks import layers
from worker.engine.networks.architectures import Mlp
from worker.engine.networks.losses import Loss


class _LayerState(NamedTuple):
    """Activations and backpropagated quantities of one layer at w."""

    weight: Tensor  # (out, in)
    a: Tensor  # (c, in)
    delta: Tensor  # (c, out)
    slope: Tensor | None  # (c, in): φ'(Z) of the layer below; None for the first
    bend: Tensor | None  # (c, in): (δ·W)∘φ''(Z) of the layer below


class DenseCurvature:
    """H·v and S·v summed over a chunk, without the λ term."""

    def __init__(
        self, spec: Mlp, loss: Loss, parts: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> None:
        self._loss, self._weights = loss, weights[:, None]  # weight of each row
        count = len(spec.widths) - 1
        matrices = [parts[f"layers.{i}.weight"] for i in range(count)]
        inputs, logits = [x], []
        for i, weight in enumerate(matrices):
            logits.append(torch.addmm(parts[f"layers.{i}.bias"], inputs[-1], weight.T))
            if i < count - 1:
                inputs.append(layers.value(spec.activation, logits[-1]))
        self._z = logits[-1]
        delta = loss.residual(self._z, y).q * self._weights
        self._layers: list[_LayerState] = []
        for i in range(count - 1, 0, -1):
            slope, back = layers.slope(spec.activation, logits[i - 1]), delta @ matrices[i]
            bend = back * layers.bend(spec.activation, logits[i - 1])
            self._layers.append(_LayerState(matrices[i], inputs[i], delta, slope, bend))
            delta = back * slope
        self._layers.append(_LayerState(matrices[0], x, delta, None, None))

    def product(self, parts: Mapping[str, Tensor], *, remainder: bool = False) -> Tensor:
        """Return H·v, or S·v if `remainder`, for a direction given by parameter name. -> (d,)"""
        kept = self._layers[::-1]
        tangents: list[tuple[Tensor | None, Tensor]] = []  # A' and Z' of each layer
        lead: Tensor | None = None
        for i, layer in enumerate(kept):
            z = torch.addmm(parts[f"layers.{i}.bias"], layer.a, parts[f"layers.{i}.weight"].T)
            z = z if lead is None else z.addmm_(lead, layer.weight.T)
            tangents.append((lead, z))
            above = kept[i + 1] if i + 1 < len(kept) else None
            lead = None if above is None or above.slope is None else above.slope * z
        top = tangents[-1][1]
        delta = torch.zeros_like(top) if remainder else self._loss.curve(self._z, top) * self._weights
        pieces: list[Tensor] = []
        for i in range(len(kept) - 1, -1, -1):
            layer, (lead, _) = kept[i], tangents[i]
            weight = delta.T @ layer.a
            weight = weight if lead is None else weight.addmm_(layer.delta.T, lead)
            pieces[:0] = (weight.reshape(-1), delta.sum(0))
            if layer.slope is not None and layer.bend is not None:
                back = delta @ layer.weight + layer.delta @ parts[f"layers.{i}.weight"]
                delta = back * layer.slope + layer.bend * tangents[i - 1][1]
        return torch.cat(pieces)
