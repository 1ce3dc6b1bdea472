"""The cases of the linearised benchmark: network, rows, public anchor and objective."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bench import efficientnet_block
from bench.backbones.efficientnet import REDUCTION, TRUNK_CHANNELS
from bench.datasets import Images, cifar10, mnist
from bench.image_features import cifar_activations
from bench.network_data import scaled
from worker.engine.linearised.objective import LinearisedObjective, preparation
from worker.engine.networks.architectures import AllCnn, Mlp, ResNet18, Spec, build
from worker.engine.rows import ArrayRows

SEED = 0
_BATCH, _SMOOTHING = 64, 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """One dataset, network and anchor. `family` and `network` are what a manifest would say.

    Without a `spec`, the network is the last block of EfficientNet-Lite0, and rows are what enters it.
    """

    name: str
    title: str
    family: str
    spec: Spec | None
    network: dict[str, Any]
    lam: float
    target: float
    public: int
    private: int
    epochs: int = 0
    rate: float = 0.0
    layers: tuple[str, ...] = ()
    side: int | None = None
    centre: float = 0.0
    flip: bool = False
    draws: int = 5  # published versions from which the small erasure starts
    sketched: bool = True  # whether a curvature sketch is prepared for it

    @property
    def inputs(self) -> int:
        """Number of features per row."""
        if self.spec is not None:
            return self.spec.inputs
        assert self.side is not None
        return TRUNK_CHANNELS * (self.side // REDUCTION) ** 2

    def build(self) -> nn.Module:
        """Return a new module of the network."""
        if self.spec is not None:
            return build(self.spec)
        assert self.side is not None
        return efficientnet_block.EfficientNetBlock(self.side // REDUCTION)


MNIST = Case(
    "mnist",
    "MNIST, 784-64-64-10 ReLU, linearised",
    "mlp",
    Mlp((784, 64, 64, 10), "relu"),
    {"hidden": [64, 64], "activation": "relu", "linearised": True},
    lam=3e-3,
    target=1e-4,
    public=5000,
    private=55_000,
    epochs=40,
    rate=3e-3,
    draws=3,
)
# λ, Δ*, the widths and the trained layers were chosen on the public rows alone: an anchor from 2,000 of them,
# 6,000 in place of the private rows, and 2,000 to compare F1 with and without noise.
CIFAR = Case(
    "cifar10",
    "CIFAR-10, last convolution and head of a ReLU CNN at 16 pixels, linearised",
    "allcnn",
    AllCnn((3, 16, 16), 10, ((32, 2), (64, 2), (128, 2)), "relu"),
    {
        "image": [3, 16, 16],
        "channels": [[32, 2], [64, 2], [128, 2]],
        "activation": "relu",
        "linearised": True,
    },
    lam=3e-3,
    target=1e-3,
    public=10_000,
    private=30_000,
    epochs=30,
    rate=5e-3,
    layers=("layers.2", "head"),
    side=16,
    centre=0.5,
    flip=True,
)
# Chosen on the public rows alone: an anchor from 2,000 of them, 6,000 in place of the private rows, and 2,000
# to compare F1 with and without noise.
BLOCK = Case(
    "cifar10_block",
    "CIFAR-10, last block of EfficientNet-Lite0 at 64 pixels, linearised",
    "efficientnet-block",
    None,
    {"linearised": True},
    lam=1e-2,
    target=1e-3,
    public=10_000,
    private=40_000,
    layers=efficientnet_block.LAYERS,
    side=64,
    draws=2,
    sketched=False,
)
RESNET = Case(
    "resnet18",
    "CIFAR-10, last block of a ReLU ResNet-18 at 16 pixels, linearised",
    "resnet18",
    ResNet18((3, 16, 16), 10, 8, 4, "relu"),
    {"image": [3, 16, 16], "base_width": 8, "groups": 4, "activation": "relu", "linearised": True},
    lam=1e-2,
    target=1e-3,
    public=4000,
    private=1000,
    epochs=5,
    rate=5e-3,
    layers=("blocks.7", "head"),
    side=16,
    centre=0.5,
    flip=True,
    draws=2,
    sketched=False,
)
CASES: dict[str, tuple[Case, Callable[[], Images]]] = {
    "mnist": (MNIST, mnist),
    "cifar10": (CIFAR, cifar10),
    "cifar10_block": (BLOCK, cifar10),
    "resnet18": (RESNET, cifar10),
}


@dataclass(frozen=True, slots=True)
class Data:
    """Public, private and test rows of a case, and those of the private and test rows that a fit reads."""

    public: ArrayRows
    private: ArrayRows
    labels: NDArray[np.int64]
    test: ArrayRows
    prepared: ArrayRows | None = None
    prepared_test: ArrayRows | None = None


def split(images: Images, case: Case) -> Data:
    """Split one fixed shuffle into public rows, then private rows."""
    order = np.random.default_rng(SEED).permutation(len(images.train_labels))[: case.public + case.private]
    pixels, test = _inputs(images, case, order)
    labels = images.train_labels[order].astype(np.int64)
    return Data(
        public=ArrayRows(pixels[: case.public], labels[: case.public]),
        private=ArrayRows(pixels[case.public :], labels[case.public :]),
        labels=labels[case.public :],
        test=ArrayRows(test, images.test_labels.astype(np.int64)),
    )


def _inputs(
    images: Images, case: Case, order: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the training rows in this order, and the test rows, as the network of the case reads them."""
    if case.spec is None:
        assert case.side is not None
        train, test = cifar_activations(case.side)
        return train[order], test
    shape, side, centre = images.shape, case.side, case.centre
    return (
        scaled(images.train_images[order], shape, side, centre),
        scaled(images.test_images, shape, side, centre),
    )


def prepare(case: Case, data: Data, anchor: Tensor) -> Data:
    """Compute the activations before the first trained layer once, if only some layers are trained."""
    constant = preparation(case.build(), anchor, case.layers, device="cpu")
    if constant is None:
        return data

    def prepared(rows: ArrayRows) -> ArrayRows:
        pieces = [(constant(x.double()), y) for x, y in rows.chunks(constant.chunk_rows)]
        return ArrayRows(torch.cat([x for x, _ in pieces]), torch.cat([y for _, y in pieces]))

    return replace(data, prepared=prepared(data.private), prepared_test=prepared(data.test))


def public_anchor(case: Case, rows: ArrayRows) -> Tensor:
    """Fit the network on public rows, with AdamW in float32 and a one-cycle rate unless published. -> (d,)"""
    if case.spec is None:
        assert case.side is not None
        return efficientnet_block.fit_anchor(rows, case.side // REDUCTION)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = case.build().float()
    x, y = rows.sample(torch.arange(rows.count))
    generator = torch.Generator().manual_seed(SEED)
    batches = rows.count // _BATCH
    optimiser = torch.optim.AdamW(module.parameters(), lr=case.rate, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=case.rate, total_steps=case.epochs * batches + 1
    )
    for _ in range(case.epochs):
        order = torch.randperm(rows.count, generator=generator)[: batches * _BATCH]
        for picks in order.view(batches, _BATCH):
            images = _flipped(x[picks], case, generator) if case.flip else x[picks]
            optimiser.zero_grad()
            loss = functional.cross_entropy(module(images), y[picks], label_smoothing=_SMOOTHING)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            rate.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().double()


def _flipped(x: Tensor, case: Case, generator: torch.Generator) -> Tensor:
    """Mirror half of the images and shift each by up to one pixel."""
    assert case.side is not None
    images = x.view(-1, 3, case.side, case.side)
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    down, across = torch.randint(-1, 2, (2,), generator=generator).tolist()
    return images.roll((down, across), (2, 3)).reshape(len(x), -1)


def objective_of(
    case: Case, data: Data, anchor: Tensor, erased: NDArray[np.int64] | None
) -> LinearisedObjective:
    """Return the linearised objective on the private rows without the erased ones."""
    rows = data.prepared or data.private
    if erased is not None:
        keep = torch.from_numpy(np.setdiff1d(np.arange(len(data.labels)), erased))
        rows = ArrayRows(*rows.sample(keep))
    return objective_on(case, rows, anchor, data)


def objective_on(case: Case, rows: ArrayRows, anchor: Tensor, data: Data) -> LinearisedObjective:
    """Return the linearised objective on these rows, which are prepared if those of `data` are."""
    return LinearisedObjective(
        rows,
        case.build(),
        case.lam,
        anchor,
        layers=case.layers,
        prepared=data.prepared is not None,
        width=data.private.width,
    )
