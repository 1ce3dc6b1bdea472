"""Rows for linear models, none longer than 1. What is done to a row depends on it and on constants alone.

MNIST: pixels, a constant feature, divided by a constant, as bench.engine has them. Fashion-MNIST: pixels,
each row divided by its own length, a constant feature. CIFAR-10: in place of pixels, which carry little for
a linear model, the answers of 64 Gaussian 6x6 filters at stride 2, both signs apart, averaged over each
quarter of the image, square roots of that less the row's own mean; the filters are drawn once, from a fixed
seed.
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
    """Training rows, so many at random, and all test rows of a data set, ready for `Data.objective`."""
    images = SOURCES[name]()
    part = np.sort(np.random.default_rng(0).permutation(len(images.train_labels))[:rows])
    train = Data(_features(images, images.train_images[part]), images.train_labels[part].astype(np.int64))
    return train, Data(_features(images, images.test_images), images.test_labels.astype(np.int64))


def described(name: str) -> str:
    """What the linear model sees."""
    if name == "CIFAR-10":
        return f"{FILTERS} fixed random {PATCH}×{PATCH} filters, both signs, roots of means over quarters"
    return "pixels"


def _features(images: Images, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    pixels = rows.astype(np.float32) / np.float32(255)
    if images.name == "MNIST":
        return _with_constant(pixels, SCALE)
    found = _filtered(images, pixels) if images.shape[0] == 3 else pixels
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    found = found / np.maximum(lengths, np.float32(1e-6))
    return _with_constant(found.astype(np.float32, copy=False), math.sqrt(2))


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
