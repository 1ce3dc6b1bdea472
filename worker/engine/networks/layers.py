"""Linear maps and activations of a layered network, with the rounding error of each (see `explicit_pass`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine.networks.architectures import Activation
from worker.engine.rounding import EXP_ULPS, TINY, UNIT, gamma

BLOCK = 64  # Summing long dot products in blocks shortens the longest chain of additions.
ACTIVATION_UNITS = 16 + 8 * EXP_ULPS
LARGEST_SLOPE = {"gelu": 1.1290, "silu": 1.0999, "tanh": 1.0, "softplus": 1.0, "relu": 1.0}
LARGEST_BEND = {"gelu": 0.7979, "silu": 0.5, "tanh": 0.7699, "softplus": 0.25, "relu": math.inf}


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters of one layer at a point, with bounds on their norms."""

    weight: Tensor  # (out, k)
    bias: Tensor  # (out,)
    window: int  # 0: dense; 3 or 1: convolution
    stride: int
    norm: float  # ≥ ‖weight‖₂
    frobenius: float

    @property
    def overlap(self) -> int:
        """Square root of the number of patches an entry can be in: how much patches can lengthen a row."""
        return -(-self.window // self.stride) if self.window else 1


@dataclass(frozen=True, slots=True)
class Trace:
    """What the backward pass needs of a layer. The last two fields are error bounds, (c,)."""

    patches: Tensor  # (c, k) or (c, k, positions)
    source: tuple[int, ...]  # height and width of the layer's input; empty if dense
    image: tuple[int, ...]  # height and width of its output
    z: Tensor  # (c, out) or (c, out, positions)
    patches_error: Tensor
    z_error: Tensor


def layer_of(parts: Mapping[str, Tensor], name: str, window: int = 0, stride: int = 1) -> Layer:
    """Return the layer `name` of the parameters, with bounds on its spectral and Frobenius norms."""
    weight = parts[f"{name}.weight"].flatten(1)
    frobenius = float(torch.linalg.matrix_norm(weight)) * (1 + 1e-9)
    norm = frobenius
    if math.isfinite(frobenius):
        norm = min(norm, float(torch.linalg.matrix_norm(weight.double(), 2)) * (1 + 1e-9))
    return Layer(weight, parts[f"{name}.bias"], window, stride, norm, frobenius)


def forward(layer: Layer, a: Tensor, a_error: Tensor) -> Trace:
    """Compute Z = W·P + b for inputs known to within `a_error` (c,)."""
    patches, source, image = _patches(layer, a)
    z = multiply(layer.weight, patches)
    z = z + (layer.bias if z.dim() == 2 else layer.bias[:, None])
    patches_error = layer.overlap * a_error
    bias = float(torch.linalg.vector_norm(layer.bias)) * math.sqrt(math.prod(image))
    rounding = chain(layer.weight.shape[1]) * (layer.frobenius * norms(patches) + bias)
    z_error = layer.norm * patches_error + rounding + TINY * math.sqrt(z[0].numel())
    return Trace(patches, source, image, z, patches_error, z_error)


def backward(layer: Layer, trace: Trace, delta: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Map δ_Z, known to within `error` (c,), to δ of the layer's input, in the shape of the Z below."""
    columns = multiply(layer.weight.T, delta)
    error = layer.norm * error + chain(len(layer.weight)) * layer.frobenius * norms(delta)
    if layer.window > 1:
        error = layer.overlap * (error + gamma(layer.window**2) * norms(columns))
        folded = functional.fold(columns, trace.source, layer.window, padding=1, stride=layer.stride)
        columns = folded.flatten(2)
    return columns, error + TINY * math.sqrt(columns[0].numel())


def outer(delta: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Sum δ ⊗ (P, 1) over rows and positions: the gradients of weight (out, k) and bias (out,)."""
    if delta.dim() == 2:
        return delta.T @ patches, delta.sum(0)
    return torch.einsum("cop,ckp->ok", delta, patches), delta.sum((0, 2))


def pooled(trace: Trace) -> tuple[Tensor, Tensor]:
    """Return the logits (c, outputs), averaged over positions if there are any, and their error (c,)."""
    if trace.z.dim() == 2:
        return trace.z, trace.z_error
    positions = trace.z.shape[2]
    error = trace.z_error + gamma(positions + 1) * norms(trace.z)
    return trace.z.mean(2), error / math.sqrt(positions)


def unpooled(q: Tensor, error: Tensor, trace: Trace) -> tuple[Tensor, Tensor]:
    """Apply the transpose of `pooled` to a residual and its error."""
    if trace.z.dim() == 2:
        return q, error
    positions = trace.z.shape[2]
    spread = (q / positions)[:, :, None].expand_as(trace.z)
    return spread, (error + 2 * UNIT * norms(q)) / math.sqrt(positions)


def value(activation: Activation, z: Tensor) -> Tensor:
    """Return φ(z)."""
    if activation == "gelu":
        return functional.gelu(z)
    if activation == "softplus":
        return -functional.logsigmoid(-z)
    if activation == "relu":
        return z.clamp(min=0)
    return functional.silu(z) if activation == "silu" else torch.tanh(z)


def slope(activation: Activation, z: Tensor) -> Tensor:
    """Return φ'(z). The slope of ReLU at 0 is 0."""
    if activation == "relu":
        return (z > 0).to(z.dtype)
    if activation == "gelu":
        density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        return (1 + torch.erf(z / math.sqrt(2))) / 2 + z * density
    if activation == "tanh":
        return 1 - torch.tanh(z).square()
    s = torch.sigmoid(z)
    return s if activation == "softplus" else s * (1 + z * (1 - s))


def bend(activation: Activation, z: Tensor) -> Tensor:
    """Return φ''(z), which ReLU does not have."""
    assert activation != "relu"
    if activation == "gelu":
        return (2 - z.square()) * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    if activation == "tanh":
        t = torch.tanh(z)
        return -2 * t * (1 - t.square())
    s = torch.sigmoid(z)
    product = s * (1 - s)
    return product if activation == "softplus" else product * (2 + z * (1 - 2 * s))


def multiply(matrix: Tensor, columns: Tensor) -> Tensor:
    """Multiply matrix (m, k) by columns (c, k) or (c, k, positions), in blocks of k."""
    total: Tensor | None = None
    for start in range(0, matrix.shape[1], BLOCK):
        left, right = matrix[:, start : start + BLOCK], columns[:, start : start + BLOCK]
        piece = right @ left.T if columns.dim() == 2 else left @ right
        total = piece if total is None else total.add_(piece)
    assert total is not None
    return total


def chain(length: int) -> float:
    """Return γ for a dot product of `length` terms summed by `multiply`, plus two more operations."""
    return gamma(min(length, BLOCK) + -(-length // BLOCK) + 2)


def norms(tensor: Tensor) -> Tensor:
    """Return the 2-norm of each row. (c, …) -> (c,)"""
    lengths: Tensor = torch.linalg.vector_norm(tensor.flatten(1), dim=1)
    return lengths


def _patches(layer: Layer, a: Tensor) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Return the layer's input as columns, and height and width of input and output."""
    if layer.window == 0:
        return a, (), ()
    source = tuple(a.shape[2:])
    if layer.window == 1:
        return a.flatten(2), source, source
    columns = functional.unfold(a, layer.window, padding=1, stride=layer.stride)
    return columns, source, tuple(-(-side // layer.stride) for side in source)
