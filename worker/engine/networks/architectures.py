"""Built-in network architectures: no running statistics, no dropout.

ReLU has a kink. A network with it can only be used linearised (`worker.engine.linearised`).

A spec is a value that fixes every shape, and `build` makes the module. Parameters live outside the module, in
one flat float64 vector in the order of `shapes`, so the initial values of the module play no part.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker.engine.validation import EngineInputError

Activation: TypeAlias = Literal["gelu", "silu", "tanh", "softplus", "relu"]
Image: TypeAlias = tuple[int, int, int]  # channels, height, width
Stage: TypeAlias = tuple[tuple[str, ...], Callable[[Tensor], Tensor]]  # names of its layers, and the function


@dataclass(frozen=True, slots=True)
class Mlp:
    """Fully connected network: linear layers with bias and an activation between them.

    Example widths: (784, 32, 32, 10).
    """

    widths: tuple[int, ...]
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        if len(self.widths) < 2:
            raise EngineInputError(f"an MLP needs at least an input and an output width, got {self.widths}")
        _check_sizes("MLP widths", self.widths)
        _check_activation(self.activation)

    @property
    def inputs(self) -> int:
        """Number of features per row."""
        return self.widths[0]

    @property
    def outputs(self) -> int:
        """Number of logits."""
        return self.widths[-1]


@dataclass(frozen=True, slots=True)
class AllCnn:
    """All-convolutional network (Springenberg et al. 2015) without dropout.

    `channels` lists (out_channels, stride) of the 3x3 convolutions, each with padding 1 and an activation. A
    1x1 convolution without activation maps to the classes, and its spatial mean gives the logits.
    """

    image: Image
    classes: int
    channels: tuple[tuple[int, int], ...] = ((16, 2), (16, 1), (32, 2), (32, 1))
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        _check_image(self.image)
        if not self.channels:
            raise EngineInputError("an AllCNN needs at least one 3x3 layer")
        _check_sizes("AllCNN channels and strides", tuple(size for layer in self.channels for size in layer))
        _check_sizes("classes", (self.classes,))
        _check_activation(self.activation)

    @property
    def inputs(self) -> int:
        """Number of features per row."""
        return math.prod(self.image)

    @property
    def outputs(self) -> int:
        """Number of logits."""
        return self.classes


@dataclass(frozen=True, slots=True)
class ResNet18:
    """ResNet-18 with GroupNorm, which normalises each row by itself, in place of BatchNorm.

    Eight basic blocks after a 3x3 stem without max-pooling, as is usual for 32-pixel images, with widths
    base·(1, 2, 4, 8).
    """

    image: Image
    classes: int
    base_width: int = 64
    groups: int = 8
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        _check_image(self.image)
        _check_sizes("ResNet sizes", (self.classes, self.base_width, self.groups))
        if self.base_width % self.groups:
            raise EngineInputError(f"base_width {self.base_width} is not a multiple of {self.groups} groups")
        _check_activation(self.activation)

    @property
    def inputs(self) -> int:
        """Number of features per row."""
        return math.prod(self.image)

    @property
    def outputs(self) -> int:
        """Number of logits."""
        return self.classes


Spec: TypeAlias = Mlp | AllCnn | ResNet18


def build(spec: Spec) -> nn.Module:
    """Build the module for a spec. It maps flat rows (c, inputs) to logits (c, outputs)."""
    if isinstance(spec, Mlp):
        return MlpModule(spec)
    return AllCnnModule(spec) if isinstance(spec, AllCnn) else ResNet18Module(spec)


def shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return parameter names and shapes in the order of the flat vector."""
    with torch.device("meta"):
        return shapes_of(build(spec))


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the parameter names and shapes of a module."""
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def dimension(spec: Spec) -> int:
    """Return d, the number of parameters."""
    return sum(math.prod(shape) for shape in shapes(spec).values())


def initial_point(spec: Spec, seed: int) -> Tensor:
    """Return torch's usual random initialisation, the start of an anchor fit. -> (d,) float64"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build(spec)
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).double()


class SmoothSoftplus(nn.Module):
    """The function log(1 + exp x).

    torch's own softplus switches to the identity above a threshold, with a jump.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return log(1 + exp x) elementwise."""
        return -functional.logsigmoid(-x)


class MlpModule(nn.Module):
    """Module of an `Mlp` spec."""

    def __init__(self, spec: Mlp) -> None:
        super().__init__()
        self.spec = spec
        pairs = zip(spec.widths[:-1], spec.widths[1:], strict=True)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        self.activation = activation_module(spec.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits. (c, inputs) -> (c, outputs)"""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        logits: Tensor = self.layers[-1](x)
        return logits


class AllCnnModule(nn.Module):
    """Module of an `AllCnn` spec."""

    def __init__(self, spec: AllCnn) -> None:
        super().__init__()
        self.spec = spec
        self.image = spec.image
        before = spec.image[0]
        self.layers = nn.ModuleList()
        for after, stride in spec.channels:
            self.layers.append(nn.Conv2d(before, after, 3, stride=stride, padding=1))
            before = after
        self.head = nn.Conv2d(before, spec.classes, 1)
        self.activation = activation_module(spec.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits. (c, inputs) -> (c, classes)"""
        x = x.reshape(-1, *self.image)
        for layer in self.layers:
            x = self.activation(layer(x))
        logits: Tensor = self.head(x).mean((2, 3))
        return logits


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2016), normalised within each row."""

    def __init__(self, before: int, after: int, stride: int, groups: int, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(groups, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(groups, after)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.first_norm(self.first(x)))
        outer: Tensor = self.activation(self.second_norm(self.second(inner)) + self.shortcut(x))
        return outer


class ResNet18Module(nn.Module):
    """Module of a `ResNet18` spec."""

    def __init__(self, spec: ResNet18) -> None:
        super().__init__()
        self.image = spec.image
        self.activation = activation_module(spec.activation)
        width = spec.base_width
        self.stem = nn.Conv2d(spec.image[0], width, 3, padding=1, bias=False)
        self.stem_norm = nn.GroupNorm(spec.groups, width)
        self.blocks = nn.ModuleList()
        before = width
        for stage in range(4):
            after = width * 2**stage
            for stride in (1 if stage == 0 else 2, 1):
                self.blocks.append(_Block(before, after, stride, spec.groups, self.activation))
                before = after
        self.head = nn.Linear(before, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits. (c, inputs) -> (c, classes)"""
        for _, run in self.stages():
            x = run(x)
        return x

    def stages(self) -> list[Stage]:
        """Return the parts of the network in the order in which a row passes through them."""
        blocks: list[Stage] = [((f"blocks.{i}",), block) for i, block in enumerate(self.blocks)]
        return [(("stem", "stem_norm"), self._enter), *blocks, (("head",), self._leave)]

    def _enter(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.stem_norm(self.stem(x.reshape(-1, *self.image))))
        return out

    def _leave(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def activation_module(activation: Activation) -> nn.Module:
    """Return the activation as a module. GELU is the exact erf form."""
    if activation == "relu":
        return nn.ReLU()
    if activation == "gelu":
        return nn.GELU(approximate="none")
    if activation == "softplus":
        return SmoothSoftplus()
    return nn.SiLU() if activation == "silu" else nn.Tanh()


def _check_activation(activation: str) -> None:
    known = get_args(Activation)
    if activation not in known:
        raise EngineInputError(f"the activation must be one of {', '.join(known)}; got {activation!r}")


def _check_image(image: Image) -> None:
    if len(image) != 3:
        raise EngineInputError(f"an image is (channels, height, width), got {image}")
    _check_sizes("image", image)


def _check_sizes(what: str, sizes: tuple[int, ...]) -> None:
    if any(size < 1 for size in sizes):
        raise EngineInputError(f"{what} must be positive, got {sizes}")
