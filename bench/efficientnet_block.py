"""The last convolution of EfficientNet-Lite0 with its normalisation and a new head, to be linearised.

Rows are what enters this convolution (`bench.image_features.cifar_activations`). Everything before it is
frozen, like the backbone of a representation. BatchNorm uses the statistics published with the weights.

Only some output channels of the convolution are trained, so that a pass stays cheap: those that matter most
to the head that was fitted on public rows. They come first in the anchor.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.backbones.efficientnet import BATCH_NORM_EPSILON, FEATURES, TRUNK_CHANNELS, read_weights
from worker.engine.families import Softmax
from worker.engine.linearised.automatic import anchor_shapes
from worker.engine.networks.architectures import Stage
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import minimise

TUNED = 128  # channels that are trained
LAYERS = ("tuned", "tuned_norm", "head")
SCALE = 0.1  # of the averages that the head reads, whose length is about 66 otherwise
_HEAD_LAMBDA, _HEAD_TARGET = 1e-3, 1e-2
_BATCH = 1000


class EfficientNetBlock(nn.Module):
    """Convolution, BatchNorm, ReLU6, averages over positions and a linear head, in two groups of channels.

    The convolution sees one position at a time, so it is a linear layer on the channels of each position.
    """

    def __init__(self, side: int) -> None:
        """Take maps of `side` by `side` positions."""
        super().__init__()
        self.positions = side**2
        self.frozen = nn.Linear(TRUNK_CHANNELS, FEATURES - TUNED, bias=False)
        self.frozen_norm = nn.BatchNorm1d(FEATURES - TUNED, eps=BATCH_NORM_EPSILON)
        self.tuned = nn.Linear(TRUNK_CHANNELS, TUNED, bias=False)
        self.tuned_norm = nn.BatchNorm1d(TUNED, eps=BATCH_NORM_EPSILON)
        self.head = nn.Linear(FEATURES, 10)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits. (c, channels·positions) -> (c, 10)"""
        for _, run in self.stages():
            x = run(x)
        return x

    def stages(self) -> list[Stage]:
        """Return the parts of the network in the order in which a row passes through them."""
        return [
            (("frozen", "frozen_norm"), self._append_frozen),
            (("tuned", "tuned_norm"), self._replace_maps),
            (("head",), self.head),
        ]

    def _append_frozen(self, x: Tensor) -> Tensor:
        """Order the maps by position and append the averages of the frozen channels."""
        maps = x.view(len(x), TRUNK_CHANNELS, self.positions).transpose(1, 2)
        return torch.cat([maps.flatten(1), _averages(maps, self.frozen, self.frozen_norm)], 1)

    def _replace_maps(self, x: Tensor) -> Tensor:
        """Replace the maps by the averages of the trained channels."""
        width = TRUNK_CHANNELS * self.positions
        maps = x[:, :width].view(len(x), self.positions, TRUNK_CHANNELS)
        return torch.cat([_averages(maps, self.tuned, self.tuned_norm), x[:, width:]], 1)


def _averages(maps: Tensor, linear: nn.Module, norm: nn.Module) -> Tensor:
    """Return the averages over positions. (c, positions, channels) -> (c, outputs)"""
    z = linear(maps)
    return SCALE * functional.relu6(norm(z.flatten(0, 1))).view(z.shape).mean(1)


def fit_anchor(rows: ArrayRows, side: int) -> Tensor:
    """Return the published weights with a head fitted on public rows by softmax regression. -> (d,)"""
    x, y = rows.sample(torch.arange(rows.count))
    averages = _published_averages(x.float(), side)
    head = Softmax(ArrayRows(averages, y), 10, _HEAD_LAMBDA)
    w = minimise(head, head.anchor, target=_HEAD_TARGET).w
    split = 10 * FEATURES
    weight, bias = w[:split].view(10, FEATURES), w[split:]
    matter = weight.norm(dim=0) * averages.double().std(0)  # how much a channel moves the logits
    order = matter.argsort(descending=True)
    state = {"head.weight": weight[:, order], "head.bias": bias}
    for name, channels in (("tuned", order[:TUNED]), ("frozen", order[TUNED:])):
        state |= {f"{name}{key}": tensor[channels] for key, tensor in _published().items()}
    block = EfficientNetBlock(side)
    return torch.cat([state[name].double().reshape(-1) for name in anchor_shapes(block)])


def _published() -> dict[str, Tensor]:
    """Return the published weights of the convolution and its normalisation."""
    weights = read_weights(0)
    parts = ("weight", "bias", "running_mean", "running_var")
    return {".weight": weights["_conv_head.weight"].flatten(1)} | {
        f"_norm.{part}": weights[f"_bn1.{part}"] for part in parts
    }


def _published_averages(x: Tensor, side: int) -> Tensor:
    """Return the averages of all channels for the rows x. -> (n, 1280)"""
    published = _published()
    linear = nn.Linear(TRUNK_CHANNELS, FEATURES, bias=False)
    norm = nn.BatchNorm1d(FEATURES, eps=BATCH_NORM_EPSILON).eval()
    linear.load_state_dict({"weight": published[".weight"]})
    parts = {key.removeprefix("_norm."): part for key, part in published.items() if key != ".weight"}
    norm.load_state_dict(parts, strict=False)
    with torch.no_grad():
        maps = x.view(len(x), TRUNK_CHANNELS, side**2).transpose(1, 2)
        return torch.cat([_averages(part, linear, norm) for part in torch.split(maps, _BATCH)])
