"""Features for linear models, with no row longer than 1.

Each depends only on its own row and on constants.

MNIST: pixels and a constant feature, divided by a constant, as in bench.engine. Fashion-MNIST: pixels, each
row divided by its own length, and a constant feature. CIFAR-10: pixels carry little for a linear model, so
the features are the responses of 64 Gaussian 6x6 filters at stride 2, positive and negative parts separately,
averaged over each quarter of the image. Their square roots, less the mean of the row, are used. The filters
are drawn once from a fixed seed.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from bench.datasets import SOURCES, Images
from bench.engine import SCALE, Data

FILTERS, PATCH, STRIDE, QUARTERS = 64, 6, 2, 2
SEED = 8
_BLOCK = 1000


def load(name: str, rows: int) -> tuple[Data, Data]:
    """Return `rows` random training rows and all test rows of a dataset, ready for `Data.objective`."""
    images = SOURCES[name]()
    part = np.sort(np.random.default_rng(0).permutation(len(images.train_labels))[:rows])
    train = Data(_features(images, images.train_images[part]), images.train_labels[part].astype(np.int64))
    return train, Data(_features(images, images.test_images), images.test_labels.astype(np.int64))


def described(name: str) -> str:
    """Describe what the linear model sees."""
    if name == "CIFAR-10":
        return f"{FILTERS} fixed random {PATCH}×{PATCH} filters, both signs, roots of means over quarters"
    return "pixels"


def _features(images: Images, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    pixels = rows.astype(np.float32) / np.float32(255)
    if images.name == "MNIST":
        return _with_constant(pixels, SCALE)
    features = _filtered(images, pixels) if images.shape[0] == 3 else pixels
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.maximum(lengths, np.float32(1e-6))
    return _with_constant(features.astype(np.float32, copy=False), math.sqrt(2))


def _filtered(images: Images, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    generator = torch.Generator().manual_seed(SEED)
    filters = torch.randn((FILTERS, images.shape[0], PATCH, PATCH), generator=generator)
    blocks = []
    for start in range(0, len(pixels), _BLOCK):
        centred = torch.from_numpy(pixels[start : start + _BLOCK]).view(-1, *images.shape) - 0.5
        answer = torch.nn.functional.conv2d(centred, filters, stride=STRIDE)
        both = torch.cat([answer.relu(), (-answer).relu()], dim=1)
        blocks.append(torch.nn.functional.adaptive_avg_pool2d(both, QUARTERS).flatten(1).numpy())
    roots = np.sqrt(np.concatenate(blocks))
    return np.asarray(roots - roots.mean(1, keepdims=True))


def _with_constant(features: NDArray[np.float32], longest: float) -> NDArray[np.float32]:
    whole = np.empty((len(features), features.shape[1] + 1), dtype=np.float32)
    whole[:, :-1] = features
    whole[:, -1] = 1
    whole /= np.float32(longest * (1 + 1e-6))
    return whole
