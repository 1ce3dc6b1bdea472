"""The linear maps and activations of a layered network, written out sum by sum (see `layered`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine.networks.architectures import Activation
from worker.engine.rounding import EXP_ULPS, TINY, UNIT, gamma

BLOCK = 64  # long dot products are summed in blocks, which shortens the longest chain of additions
ACTIVATION_UNITS = 16 + 8 * EXP_ULPS
LARGEST_SLOPE = {"gelu": 1.1290, "silu": 1.0999, "tanh": 1.0, "softplus": 1.0}
LARGEST_BEND = {"gelu": 0.7979, "silu": 0.5, "tanh": 0.7699, "softplus": 0.25}


@dataclass(frozen=True, slots=True)
class Layer:
    weight: Tensor  # (out, k)
    bias: Tensor  # (out,)
    window: int  # 0: dense; 3 or 1: a convolution's
    stride: int
    norm: float  # ≥ ‖weight‖₂
    frobenius: float

    @property
    def overlap(self) -> int:
        """√ of the number of patches an entry can be in: how far patches lengthen a row."""
        return -(-self.window // self.stride) if self.window else 1


@dataclass(frozen=True, slots=True)
class Trace:
    """What the backward pass needs of a layer; the last two are bounds, (c,)."""

    patches: Tensor  # (c, k) or (c, k, positions)
    source: tuple[int, ...]  # height and width of the layer's input; empty if dense
    image: tuple[int, ...]  # the same of its output
    z: Tensor  # (c, out) or (c, out, positions)
    patches_error: Tensor
    z_error: Tensor


def layer_of(parts: Mapping[str, Tensor], name: str, window: int = 0, stride: int = 1) -> Layer:
    weight = parts[f"{name}.weight"].flatten(1)
    frobenius = float(torch.linalg.matrix_norm(weight)) * (1 + 1e-9)
    norm = frobenius
    if math.isfinite(frobenius):
        norm = min(norm, float(torch.linalg.matrix_norm(weight.double(), 2)) * (1 + 1e-9))
    return Layer(weight, parts[f"{name}.bias"], window, stride, norm, frobenius)


def forward(layer: Layer, a: Tensor, a_error: Tensor) -> Trace:
    """Z = W·P + b of inputs known to within `a_error` (c,)."""
    patches, source, image = _patches(layer, a)
    z = multiply(layer.weight, patches)
    z = z + (layer.bias if z.dim() == 2 else layer.bias[:, None])
    patches_error = layer.overlap * a_error
    bias = float(torch.linalg.vector_norm(layer.bias)) * math.sqrt(math.prod(image))
    rounding = chain(layer.weight.shape[1]) * (layer.frobenius * norms(patches) + bias)
    z_error = layer.norm * patches_error + rounding + TINY * math.sqrt(z[0].numel())
    return Trace(patches, source, image, z, patches_error, z_error)


def backward(layer: Layer, trace: Trace, delta: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """δ_Z, known to within `error` (c,), to δ of the layer's input, in the shape of the Z below."""
    columns = multiply(layer.weight.T, delta)
    error = layer.norm * error + chain(len(layer.weight)) * layer.frobenius * norms(delta)
    if layer.window > 1:
        error = layer.overlap * (error + gamma(layer.window**2) * norms(columns))
        folded = functional.fold(columns, trace.source, layer.window, padding=1, stride=layer.stride)
        columns = folded.flatten(2)
    return columns, error + TINY * math.sqrt(columns[0].numel())


def outer(delta: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Σ over rows and positions of δ ⊗ (P, 1): the gradient in weight (out, k) and bias (out,)."""
    if delta.dim() == 2:
        return delta.T @ patches, delta.sum(0)
    return torch.einsum("cop,ckp->ok", delta, patches), delta.sum((0, 2))


def pooled(trace: Trace) -> tuple[Tensor, Tensor]:
    """Logits (c, outputs): the mean over positions where there are any; and their error (c,)."""
    if trace.z.dim() == 2:
        return trace.z, trace.z_error
    positions = trace.z.shape[2]
    error = trace.z_error + gamma(positions + 1) * norms(trace.z)
    return trace.z.mean(2), error / math.sqrt(positions)


def unpooled(q: Tensor, error: Tensor, trace: Trace) -> tuple[Tensor, Tensor]:
    """The transpose of `pooled`."""
    if trace.z.dim() == 2:
        return q, error
    positions = trace.z.shape[2]
    spread = (q / positions)[:, :, None].expand_as(trace.z)
    return spread, (error + 2 * UNIT * norms(q)) / math.sqrt(positions)


def value(activation: Activation, z: Tensor) -> Tensor:
    if activation == "gelu":
        return functional.gelu(z)
    if activation == "softplus":
        return -functional.logsigmoid(-z)
    return functional.silu(z) if activation == "silu" else torch.tanh(z)


def slope(activation: Activation, z: Tensor) -> Tensor:
    """φ'(z)."""
    if activation == "gelu":
        density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        return (1 + torch.erf(z / math.sqrt(2))) / 2 + z * density
    if activation == "tanh":
        return 1 - torch.tanh(z).square()
    s = torch.sigmoid(z)
    return s if activation == "softplus" else s * (1 + z * (1 - s))


def multiply(matrix: Tensor, columns: Tensor) -> Tensor:
    """matrix (m, k) times columns (c, k) or (c, k, positions), by blocks of k."""
    total: Tensor | None = None
    for start in range(0, matrix.shape[1], BLOCK):
        left, right = matrix[:, start : start + BLOCK], columns[:, start : start + BLOCK]
        piece = right @ left.T if columns.dim() == 2 else left @ right
        total = piece if total is None else total.add_(piece)
    assert total is not None
    return total


def chain(length: int) -> float:
    """γ for a dot product of `length` summed by `multiply`, and two more operations."""
    return gamma(min(length, BLOCK) + -(-length // BLOCK) + 2)


def norms(tensor: Tensor) -> Tensor:
    """2-norm of each row, (c, …) -> (c,)."""
    found: Tensor = torch.linalg.vector_norm(tensor.flatten(1), dim=1)
    return found


def _patches(layer: Layer, a: Tensor) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """The layer's input as columns, and height and width of input and output."""
    if layer.window == 0:
        return a, (), ()
    source = tuple(a.shape[2:])
    if layer.window == 1:
        return a.flatten(2), source, source
    columns = functional.unfold(a, layer.window, padding=1, stride=layer.stride)
    return columns, source, tuple(-(-side // layer.stride) for side in source)
