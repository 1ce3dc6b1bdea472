"""Convolutions as linear maps, for `lipschitz`: operator norms, and how often an entry is read."""

import math

from worker.engine.networks.architectures import AllCnn
from worker.engine.networks.layers import Layer
from worker.engine.networks.sensitivity import Linear
from worker.engine.networks.smoothness import convolution_bound


def convolutions(stack: list[Layer], spec: AllCnn) -> list[Linear]:
    """3x3 layers, then the 1x1 layer together with the mean over its positions.

    An entry of the input is in at most `overlap`² patches, so ‖V·P(a)‖_F ≤ ‖V‖_F·overlap·‖a‖. The mean of n
    positions shortens by √n.
    """
    _, height, width = spec.image
    found = []
    for layer, (_, stride) in zip(stack[:-1], spec.channels, strict=True):
        taps = layer.weight.view(len(layer.weight), -1, 3, 3)
        gain = min(convolution_bound(taps, stride), layer.overlap * layer.norm)
        found.append(Linear(layer, gain=gain, spread=float(layer.overlap), positions=1))
        height, width = -(-height // stride), -(-width // stride)
    positions = height * width
    shorter = (1 + 1e-12) / math.sqrt(positions)
    head = stack[-1]
    return [*found, Linear(head, gain=head.norm * shorter, spread=shorter, positions=positions)]
