"""Tiny linearised networks, their dense twins, and their gradients in multiprecision."""

import math
from collections.abc import Sequence

import mpmath
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from worker.engine.linearised.automatic import anchor_shapes
from worker.engine.linearised.objective import LinearisedObjective, preparation
from worker.engine.networks.architectures import AllCnn, Mlp, ResNet18, Spec, build
from worker.engine.rows import ArrayRows


class Mixed(nn.Module):
    """Attention, LayerNorm, BatchNorm, dropout, ReLU in place and a parameter of no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.3, batch_first=True)
        self.norm = nn.BatchNorm1d(12)
        self.kink = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.ones(12))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.kink(self.norm(self.encode(x.reshape(-1, 3, 4)).flatten(1)))
        logits: Tensor = self.head(hidden * self.scale)
        return logits


def staged() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), nn.LeakyReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


class Plugin(nn.Module):
    """A built-in network whose layers the engine does not recognise."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.inner = build(spec)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits


NETWORKS: dict[str, tuple[Spec | nn.Module, int]] = {
    "mlp-relu": (Mlp((5, 4, 4, 3), "relu"), 5),
    "mlp-gelu": (Mlp((5, 4, 3), "gelu"), 5),
    "mlp-regression": (Mlp((5, 4, 1), "softplus"), 5),
    "allcnn-relu": (AllCnn((2, 4, 3), 3, ((3, 2), (2, 1)), "relu"), 24),
    "allcnn-silu": (AllCnn((1, 5, 4), 2, ((2, 1), (3, 2)), "silu"), 20),
    "resnet18": (ResNet18((1, 4, 4), 3, 2, 1, "relu"), 16),
    "mixed": (Mixed(), 12),
    "staged": (staged(), 5),
}


def random_anchor(module: nn.Module, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    pieces = []
    state = module.state_dict()
    for name, shape in anchor_shapes(module).items():
        noise = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
        start = state[name].double() if "norm" in name or "running" in name or "scale" in name else 0.0
        value = start + noise if isinstance(start, Tensor) or len(shape) < 2 else noise * 1.5
        pieces.append((value.abs() + 0.2 if name.endswith("running_var") else value).reshape(-1))
    return torch.cat(pieces)


def problem(
    network: Spec | nn.Module,
    width: int,
    *,
    n: int = 9,
    lam: float = 0.1,
    seed: int = 0,
    layers: Sequence[str] = (),
    prepared: bool = False,
    scale: float = 1.0,
    chunk_bytes: int = 48 * 2**20,
) -> LinearisedObjective:
    generator = torch.Generator().manual_seed(seed)
    module = network if isinstance(network, nn.Module) else build(network)
    x = scale * torch.randn(n, width, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        outputs = module.double().eval()(x[:1]).shape[1]
    y = torch.randint(0, outputs, (n,), generator=generator)
    targets = torch.randn(n, generator=generator, dtype=torch.float64) if outputs == 1 else y
    anchor = random_anchor(module, seed + 1)
    rows = x
    if prepared:
        constant = preparation(module, anchor, layers, device="cpu")
        assert constant is not None
        rows = constant(x)
    return LinearisedObjective(
        ArrayRows(rows, targets),
        module,
        lam,
        anchor,
        layers=layers,
        prepared=prepared,
        width=width,
        chunk_bytes=chunk_bytes,
    )


def nearby(objective: LinearisedObjective, seed: int = 5, scale: float = 0.4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(objective.dimension, generator=generator, dtype=torch.float64)
    return objective.anchor + scale * noise


def jacobian(
    objective: LinearisedObjective, network: Spec | nn.Module, x: Tensor, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return N(x; a) and the whole Jacobian, (n, outputs) and (n, outputs, d), of raw rows."""
    module = (network if isinstance(network, nn.Module) else build(network)).double().eval()
    shapes = anchor_shapes(module)
    pieces = torch.split(random_anchor(module, seed + 1), [math.prod(shape) for shape in shapes.values()])
    tensors = {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
    moving = {name: tensors[name] for name in objective.shapes}

    def outputs(parts: dict[str, Tensor]) -> Tensor:
        z: Tensor = functional_call(module, tensors | parts, (x,))
        return z

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        parts = jacrev(outputs, chunk_size=1)(moving)
        base = outputs({})
    return base.detach(), torch.cat([parts[name].flatten(2) for name in objective.shapes], 2).detach()


# -- multiprecision -----------------------------------------------------------------------------------------


def exact_norm(objective: LinearisedObjective, spec: Mlp | AllCnn, w: Tensor, digits: int = 60) -> mpmath.mpf:
    """Return ‖∇f(w)‖ for exactly the doubles that the engine received. The slope of ReLU at 0 is 0."""
    ((x, y),) = objective.rows.chunks(objective.rows.count)
    with mpmath.workdps(digits):
        anchor, theta = _layers(objective, objective.anchor), _layers(objective, w)
        theta = [
            ([[v - a for v, a in zip(vs, as_, strict=True)] for vs, as_ in zip(to[0], of[0], strict=True)],
             [v - a for v, a in zip(to[1], of[1], strict=True)])
            for to, of in zip(theta, anchor, strict=True)
        ]  # fmt: skip
        total = [mpmath.mpf(0)] * objective.dimension
        for row, target in zip(x.tolist(), y.tolist(), strict=True):
            piece = _row_gradient(spec, anchor, theta, [mpmath.mpf(v) for v in row], target)
            total = [one + other for one, other in zip(total, piece, strict=True)]
        flat = [v for matrix, bias in theta for part in (*matrix, bias) for v in part]
        lam = mpmath.mpf(objective.lam)
        return mpmath.sqrt(mpmath.fsum((g / len(y) + lam * t) ** 2 for g, t in zip(total, flat, strict=True)))


def _layers(
    objective: LinearisedObjective, w: Tensor
) -> list[tuple[list[list[mpmath.mpf]], list[mpmath.mpf]]]:
    parts = list(objective.unflatten(w).values())
    return [
        (
            [[mpmath.mpf(v) for v in row] for row in weight.flatten(1).tolist()],
            [mpmath.mpf(v) for v in bias.tolist()],
        )
        for weight, bias in zip(parts[::2], parts[1::2], strict=True)
    ]


def _reads(spec: Mlp | AllCnn) -> list[list[list[int | None]]]:
    """Return for each layer and output position the inputs that it reads, in the order of the weights."""
    if isinstance(spec, Mlp):
        return [[list(range(width))] for width in spec.widths[:-1]]
    reads: list[list[list[int | None]]] = []
    channels, height, width = spec.image
    for after, stride in spec.channels:
        new = -(-height // stride), -(-width // stride)
        reads.append(
            [
                [
                    (c * height + i * stride + u - 1) * width + j * stride + v - 1
                    if 0 <= i * stride + u - 1 < height and 0 <= j * stride + v - 1 < width
                    else None
                    for c in range(channels)
                    for u in range(3)
                    for v in range(3)
                ]
                for i in range(new[0])
                for j in range(new[1])
            ]
        )
        channels, (height, width) = after, new
    return [*reads, [[c * height * width + p for c in range(channels)] for p in range(height * width)]]


def _row_gradient(spec, anchor, theta, row, target):
    """Return one row's part of the gradient, by the chain rule written out."""
    zero, reads, last = mpmath.mpf(0), _reads(spec), len(anchor) - 1
    a, moved, kept = row, [zero] * len(row), []
    for index, ((weight, bias), (along, shift)) in enumerate(zip(anchor, theta, strict=True)):
        columns = [[zero if i is None else a[i] for i in reading] for reading in reads[index]]
        leads = [[zero if i is None else moved[i] for i in reading] for reading in reads[index]]
        z = [[mpmath.fdot(w, c) + b for c in columns] for w, b in zip(weight, bias, strict=True)]
        tangent = [
            [mpmath.fdot(v, c) + s + mpmath.fdot(w, lead) for c, lead in zip(columns, leads, strict=True)]
            for w, v, s in zip(weight, along, shift, strict=True)
        ]
        kept.append((columns, z, len(a)))
        if index < last:
            a = [_value(spec.activation, v) for channel in z for v in channel]
            slopes = [_slope(spec.activation, v) for channel in z for v in channel]
            moved = [s * t for s, t in zip(slopes, [t for channel in tangent for t in channel], strict=True)]
    positions = len(z[0])
    logits = [
        mpmath.fsum(one) / positions + mpmath.fsum(two) / positions
        for one, two in zip(z, tangent, strict=True)
    ]
    delta = [[q / positions] * positions for q in _residual(logits, target)]
    pieces: list[list[mpmath.mpf]] = []
    for index in range(last, -1, -1):
        columns, _, size = kept[index]
        gradient = [
            [
                mpmath.fsum(d * c[k] for d, c in zip(channel, columns, strict=True))
                for k in range(len(columns[0]))
            ]
            for channel in delta
        ]
        pieces.insert(
            0, [v for part in (*gradient, [mpmath.fsum(channel) for channel in delta]) for v in part]
        )
        if index:
            back = [zero] * size
            for channel, weight in zip(delta, anchor[index][0], strict=True):
                for d, reading in zip(channel, reads[index], strict=True):
                    for k, i in enumerate(reading):
                        if i is not None:
                            back[i] += d * weight[k]
            below = kept[index - 1][1]
            width = len(below[0])
            delta = [
                [back[c * width + p] * _slope(spec.activation, below[c][p]) for p in range(width)]
                for c in range(len(below))
            ]
    return [v for piece in pieces for v in piece]


def _residual(z: list[mpmath.mpf], target: float) -> list[mpmath.mpf]:
    if len(z) == 1:
        return [z[0] - mpmath.mpf(target)]
    powers = [mpmath.exp(v - max(z)) for v in z]
    return [power / mpmath.fsum(powers) - (c == int(target)) for c, power in enumerate(powers)]


def _value(activation: str, z: mpmath.mpf) -> mpmath.mpf:
    if activation == "relu":
        return max(z, mpmath.mpf(0))
    if activation == "gelu":
        return z * (1 + mpmath.erf(z / mpmath.sqrt(2))) / 2
    return mpmath.tanh(z) if activation == "tanh" else z / (1 + mpmath.exp(-z))


def _slope(activation: str, z: mpmath.mpf) -> mpmath.mpf:
    if activation == "relu":
        return mpmath.mpf(1 if z > 0 else 0)
    if activation == "gelu":
        return (1 + mpmath.erf(z / mpmath.sqrt(2))) / 2 + z * mpmath.exp(-(z**2) / 2) / mpmath.sqrt(
            2 * mpmath.pi
        )
    if activation == "tanh":
        return 1 - mpmath.tanh(z) ** 2
    s = 1 / (1 + mpmath.exp(-z))
    return s * (1 + z * (1 - s))
