"""Explicit forward and backward pass of an MLP or AllCNN, with a bound on its rounding error.

Every layer is Z = W·P + b, where P is the layer's input or its 3x3 patches as columns. The pass is written
out rather than left to automatic differentiation, because only then is it known which sums are formed. Norms
below are 2-norms over one row (one image), so each quantity is a vector over the rows of the chunk. With Â
computed and A exact:

    ‖Ẑ - Z‖   ≤ ‖W‖₂·‖P̂ - P‖ + γ_s·(‖W‖_F·‖P̂‖ + ‖b‖·√positions)              γ_s: see `chain`
    ‖Â - A‖   ≤ max|φ'|·‖Ẑ - Z‖ + c·u·(‖Ẑ‖ + √size)
    ‖δ̂_P-δ_P‖ ≤ ‖W‖₂·‖δ̂_Z - δ_Z‖ + γ_s·‖W‖_F·‖δ̂_Z‖                            backwards
    ‖δ̂_Z-δ_Z‖ ≤ max|φ'|·‖δ̂_A - δ_A‖ + ‖δ_A‖·(max|φ''|·‖Ẑ - Z‖ + c·u·(1 + ‖Ẑ‖_∞)) + u·‖δ̂_Z‖
    ‖∂̂W - ∂W‖ ≤ ‖δ̂_Z - δ_Z‖·‖(P̂, 1)‖ + ‖δ_Z‖·‖P̂ - P‖                          contribution of one row

The error of the residual comes from `losses.residual_error`. Assumptions: erf, exp, tanh and log1p are within
EXP_ULPS ulp, so that φ and φ' are within c·u·(1 + |z|) with c = 16 + 8·EXP_ULPS. (x³·exp(-x²/2) and similar
terms stay below 1.2, so c also covers the rounding of the argument.) The largest singular value comes from a
backward stable decomposition. Sums may be formed in any order, with or without fused multiply-add. The
inflation in `gradient_rounding` covers the rounding of these bounds themselves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.networks import layers
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.layers import Layer, Trace, norms
from worker.engine.networks.losses import Loss, residual_error
from worker.engine.rounding import TINY, UNIT


@dataclass(frozen=True, slots=True)
class PassSums:
    """Sums over the rows of a chunk.

    `evaluation` is Σ‖error of a row's gradient‖ and `mass` ≥ Σ‖row's gradient‖.
    """

    loss: float
    gradient: Tensor  # (d,)
    evaluation: float
    mass: float
    scores: Tensor | None = None  # (c,): estimate of how much each row adds to the Hessian


class ExplicitPass:
    """The pass for one spec. With float32 parameters the error bounds are meaningless, but cost little."""

    def __init__(self, spec: Mlp | AllCnn, loss: Loss) -> None:
        self.spec, self.loss = spec, loss

    @property
    def positions(self) -> int:
        """Largest number of columns a row has in any layer.

        Each is an addition in the sum of the gradient.
        """
        if isinstance(self.spec, Mlp):
            return 1
        _, height, width = self.spec.image
        stride = self.spec.channels[0][1]
        return -(-height // stride) * -(-width // stride)

    @property
    def row_bytes(self) -> int:
        """Approximate peak float64 memory for one row: patches, logits and slopes of every layer."""
        if isinstance(self.spec, Mlp):
            return 8 * (self.spec.widths[0] + 4 * sum(self.spec.widths[1:]))
        channels, height, width = self.spec.image
        size = 0
        for after, stride in self.spec.channels:
            height, width = -(-height // stride), -(-width // stride)
            size += height * width * (2 * 9 * channels + 4 * after)
            channels = after
        return 8 * size

    def sums(self, stack: list[Layer], x: Tensor, y: Tensor) -> PassSums:
        """Return loss, gradient and error bounds summed over a chunk, x (c, inputs) and y (c,)."""
        traces: list[Trace] = []
        a = x if isinstance(self.spec, Mlp) else x.reshape(-1, *self.spec.image)
        error = x.new_zeros(len(x))
        for layer in stack:
            if traces:
                a, error = self._activate(traces[-1])
            traces.append(layers.forward(layer, a, error))
        return self._backward(stack, traces, y)

    def _backward(self, stack: list[Layer], traces: list[Trace], y: Tensor) -> PassSums:
        z, z_error = layers.pooled(traces[-1])
        residual = self.loss.residual(z, y)
        error = residual_error(self.loss, residual, z_error)
        delta, error = layers.unpooled(residual.q, error, traces[-1])
        pieces: list[Tensor] = []
        evaluation, mass = torch.zeros_like(error), torch.zeros_like(error)
        for index in range(len(stack) - 1, -1, -1):
            trace = traces[index]
            size = norms(delta)
            positions = math.sqrt(math.prod(trace.image))
            reach = torch.hypot(norms(trace.patches), size.new_tensor(positions))  # ‖(P, 1)‖
            share = error * reach + (size + error) * trace.patches_error
            evaluation, mass = torch.hypot(evaluation, share), torch.hypot(mass, size * reach)
            pieces[:0] = layers.outer(delta, trace.patches)
            if index > 0:
                delta, error = layers.backward(stack[index], trace, delta, error)
                delta, error = self._through(traces[index - 1], delta, error)
        flat = torch.cat([piece.reshape(-1) for piece in pieces]).to(torch.float64)
        scores = (residual.stiffness + norms(residual.q)) * norms(traces[0].patches).square()
        return PassSums(float(residual.loss), flat, float(evaluation.sum()), float(mass.sum()), scores)

    def _through(self, below: Trace, delta: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return δ_Z = δ_A ∘ φ'(Z) and the bound on its error."""
        activation = self.spec.activation
        lowered = delta * layers.slope(activation, below.z)
        highest = below.z.flatten(1).abs().amax(1)
        bend = layers.LARGEST_BEND[activation] * below.z_error
        slope_error = bend + layers.ACTIVATION_UNITS * UNIT * (1 + highest)
        error = layers.LARGEST_SLOPE[activation] * error + (norms(delta) + error) * slope_error
        return lowered, error + UNIT * norms(lowered)

    def _activate(self, trace: Trace) -> tuple[Tensor, Tensor]:
        """Return A = φ(Z) and the bound on its error."""
        activation = self.spec.activation
        size = math.sqrt(trace.z[0].numel())
        rounding = layers.ACTIVATION_UNITS * UNIT * (norms(trace.z) + size) + TINY * size
        a = layers.value(activation, trace.z)
        if trace.image:
            a = a.reshape(*a.shape[:2], *trace.image)
        return a, layers.LARGEST_SLOPE[activation] * trace.z_error + rounding

    def stack(self, parts: Mapping[str, Tensor]) -> list[Layer]:
        """Return the layers at the given parameters, to be used for all chunks of a pass."""
        if isinstance(self.spec, Mlp):
            return [layers.layer_of(parts, f"layers.{i}") for i in range(len(self.spec.widths) - 1)]
        strides = [stride for _, stride in self.spec.channels]
        convolutions = [layers.layer_of(parts, f"layers.{i}", 3, stride) for i, stride in enumerate(strides)]
        return [*convolutions, layers.layer_of(parts, "head", 1)]
