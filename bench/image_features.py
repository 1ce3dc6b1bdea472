"""Features of CIFAR-10 images from a public backbone, for benchmarks that need no service.

The images go through the worker's own encoder: EfficientNet-Lite0 at 128 by 128 pixels, or another side, rows
of 1,280 numbers with length 1. The 60,000 rows take minutes, so they are computed once, 5,000 at a time, and
cached beside the downloaded archives. An interrupted run continues with the first missing piece.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.archives import cache_folder
from bench.backbones import efficientnet
from bench.datasets import cifar10
from bench.representation_problems import encode_png
from worker.representation.encoder import Encoder
from worker.representation.limits import Limits

SIZE, SIDE, PIECE = 0, 128, 5000
NAME = "cifar10-efficientnet-lite{size}-{side}"


def cifar_features(rows: int, side: int = SIDE) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the features (rows, 1280) and labels (rows,) of the first training images of CIFAR-10."""
    images = cifar10()
    return _features(images.train_images, rows, "", side), images.train_labels[:rows].astype(np.int64)


def cifar_test_features(side: int = SIDE) -> NDArray[np.float32]:
    """Return the features of the test images. -> (10000, 1280)"""
    images = cifar10().test_images
    return _features(images, len(images), "test-", side)


def cifar_activations(side: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what enters the last convolution of the backbone, for all training and test images. -> (n, k)"""
    images = cifar10()
    train, test = images.train_images, images.test_images
    return (
        _features(train, len(train), "trunk-", side, trunk=True),
        _features(test, len(test), "trunk-test-", side, trunk=True),
    )


def _features(
    images: NDArray[np.uint8], rows: int, prefix: str, side: int, *, trunk: bool = False
) -> NDArray[np.float32]:
    starts = range(0, rows, PIECE)
    return np.concatenate([np.load(_piece(images, start, prefix, side, trunk)) for start in starts])[:rows]


def _piece(images: NDArray[np.uint8], start: int, prefix: str, side: int, trunk: bool) -> Path:
    """Return the cached features of the images from `start` on, computed the first time."""
    name = NAME.format(size=SIZE, side=side)
    path = cache_folder() / "features" / f"{name}-{prefix}{start:05d}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.stem}.{os.getpid()}.npy")
        np.save(partial, _encode(images[start : start + PIECE], side, trunk))
        partial.replace(path)
    return path


def _encode(images: NDArray[np.uint8], side: int, trunk: bool) -> NDArray[np.float32]:
    """Return the features of flat images with channels first. (n, 3072) -> (n, k)"""
    declare, build = (
        (efficientnet.declare_trunk, efficientnet.build_trunk)
        if trunk
        else (efficientnet.declare, efficientnet.build)
    )
    declaration, graph = declare(SIZE, side=side), build(SIZE, side=side)
    encoder = Encoder(declaration, graph, None, limits=Limits())
    return encoder.encode(pa.array([encode_png(row.reshape(3, 32, 32)) for row in images], pa.binary()))
