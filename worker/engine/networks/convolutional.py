"""Hessian products of an AllCNN at a fixed point and chunk, with everything independent of v precomputed.

The formulas are those of `dense`, with a layer's input replaced by its 3x3 patches and the way back by their
transpose. Channels come first, so that each layer is one matrix product over all rows and positions of a
chunk. The last layer and the mean after it are swapped, which leaves a dense layer on the mean.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine.networks import layers
from worker.engine.networks.architectures import AllCnn
from worker.engine.networks.losses import Loss


class _LayerState(NamedTuple):
    """State of a 3x3 layer. n is the number of rows times the positions of its output."""

    weight: Tensor  # (out, 9·in)
    stride: int
    source: tuple[int, ...]  # in, rows, height, width
    image: tuple[int, ...]  # out, rows, height, width
    patches: Tensor  # (9·in, n)
    slope: Tensor  # (out, n): φ'(Z)
    delta: Tensor  # (out, n): ∂f/∂Z
    bend: Tensor  # (out, n): (∂f/∂A)∘φ''(Z)


class ConvolutionalCurvature:
    """H·v and S·v summed over a chunk, without the λ term."""

    def __init__(
        self, spec: AllCnn, loss: Loss, parts: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> None:
        self._loss, self._weights = loss, weights[:, None]  # weight of each row
        self._head = parts["head.weight"].flatten(1)
        a = x.reshape(-1, *spec.image).transpose(0, 1)
        forward: list[tuple[tuple[int, ...], tuple[int, ...], Tensor, Tensor]] = []
        for i, (_, stride) in enumerate(spec.channels):
            patches, image = patches_of(a, stride)
            weight = parts[f"layers.{i}.weight"].flatten(1)
            z = torch.addmm(parts[f"layers.{i}.bias"][:, None], weight, patches)
            image = (len(z), *image)
            forward.append((tuple(a.shape), image, patches, z))
            a = layers.value(spec.activation, z).view(image)
        self._mean = a.mean((2, 3))  # (channels, rows)
        self._z = torch.addmm(parts["head.bias"], self._mean.T, self._head.T)
        self._q = loss.residual(self._z, y).q * self._weights
        self._layers: list[_LayerState] = []
        back = unpooled(self._head.T @ self._q.T, a)
        for i in range(len(forward) - 1, -1, -1):
            source, image, patches, z = forward.pop()
            weight, stride = parts[f"layers.{i}.weight"].flatten(1), spec.channels[i][1]
            slope, bend = layers.slope(spec.activation, z), back * layers.bend(spec.activation, z)
            delta = back * slope
            self._layers.insert(0, _LayerState(weight, stride, source, image, patches, slope, delta, bend))
            if i > 0:
                back = add_patches(weight.T @ delta, source, stride)

    def product(self, parts: Mapping[str, Tensor], *, remainder: bool = False) -> Tensor:
        """Return H·v, or S·v if `remainder`, for a direction given by parameter name. -> (d,)"""
        leads, tangents, mean = self._forwards(parts)
        head = parts["head.weight"].flatten(1)
        top = torch.addmm(parts["head.bias"], self._mean.T, head.T).addmm_(mean.T, self._head.T)
        q = torch.zeros_like(top) if remainder else self._loss.curve(self._z, top) * self._weights
        pieces = [(q.T @ self._mean.T).addmm_(self._q.T, mean.T).reshape(-1), q.sum(0)]
        back = unpooled(
            (self._head.T @ q.T).addmm_(head.T, self._q.T), tangents[-1].view(self._layers[-1].image)
        )
        for i in range(len(self._layers) - 1, -1, -1):
            layer, lead = self._layers[i], leads[i]
            delta = (back * layer.slope).addcmul_(layer.bend, tangents[i])
            weight = delta @ layer.patches.T
            if lead is not None:
                weight.addmm_(layer.delta, lead.T)
                along = parts[f"layers.{i}.weight"].flatten(1)
                columns = (layer.weight.T @ delta).addmm_(along.T, layer.delta)
                back = add_patches(columns, layer.source, layer.stride)
            pieces[:0] = (weight.reshape(-1), delta.sum(1))
        return torch.cat(pieces)

    def _forwards(self, parts: Mapping[str, Tensor]) -> tuple[list[Tensor | None], list[Tensor], Tensor]:
        """Return P(A') of each layer's input (None for the first), each Z', and the mean of the last A'."""
        leads: list[Tensor | None] = []
        tangents: list[Tensor] = []
        a: Tensor | None = None
        for i, layer in enumerate(self._layers):
            along = parts[f"layers.{i}.weight"].flatten(1)
            z = torch.addmm(parts[f"layers.{i}.bias"][:, None], along, layer.patches)
            lead = None if a is None else patches_of(a, layer.stride)[0]
            z = z if lead is None else z.addmm_(layer.weight, lead)
            leads.append(lead)
            tangents.append(z)
            a = (layer.slope * z).view(layer.image)
        assert a is not None
        return leads, tangents, a.mean((2, 3))


def patches_of(a: Tensor, stride: int) -> tuple[Tensor, tuple[int, ...]]:
    """Cut 3x3 patches with zero padding.

    (channels, rows, h, w) -> (9·channels, n), and the rows and size of the output.
    """
    rows, height, width = a.shape[1], -(-a.shape[2] // stride), -(-a.shape[3] // stride)
    padded = functional.pad(a, (1, 1, 1, 1))
    taps = [padded[window] for window in _windows(height, width, stride)]
    return torch.stack(taps, 1).view(9 * len(a), -1), (rows, height, width)


def add_patches(columns: Tensor, source: tuple[int, ...], stride: int) -> Tensor:
    """Add patches back into an image, the transpose of `patches_of`. -> (channels, rows·h·w)"""
    channels, rows, *size = source
    height, width = (-(-side // stride) for side in size)
    taps = columns.view(channels, 9, rows, height, width)
    padded = columns.new_zeros(channels, rows, size[0] + 2, size[1] + 2)
    for tap, window in enumerate(_windows(height, width, stride)):
        padded[window] += taps[:, tap]
    return padded[:, :, 1:-1, 1:-1].reshape(channels, -1)


def _windows(height: int, width: int, stride: int) -> list[tuple[slice, ...]]:
    """Return the slices of a padded image that each of the nine taps reads."""
    every = slice(None)
    down = [slice(row, row + stride * (height - 1) + 1, stride) for row in range(3)]
    across = [slice(column, column + stride * (width - 1) + 1, stride) for column in range(3)]
    return [(every, every, vertical, level) for vertical in down for level in across]


def unpooled(mean: Tensor, like: Tensor) -> Tensor:
    """Apply the transpose of the mean over positions. (channels, rows) -> (channels, rows·positions)"""
    positions = like[0, 0].numel()
    return (mean / positions)[:, :, None].expand(-1, -1, positions).reshape(len(mean), -1)
