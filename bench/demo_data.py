"""The data of the demo: scikit-learn's handwritten digits with writers, as a customer would send them.

The data set does not say who wrote which image, so the demo makes up the writers: each wrote four images of
one digit. Nothing is downloaded.
"""

import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import ndimage
from sklearn.datasets import load_digits

from examples.wavelet_representation import build
from worker.evaluation.biased_deletions import biased_deletion

IMAGES_PER_WRITER = 4
HOLDOUT_SHARE = 0.25
FIRST_WRITERS = 12
GROUP_SHARE = 1 / 8
SIDE = 8
DARKEST = 16  # the largest value of a pixel in this data set
SEED = 7

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Images (n, 64) with their labels and writers."""

    writers: npt.NDArray[np.str_]
    labels: Ints
    images: Pixels

    def parquet(self) -> bytes:
        """Return the rows as a Parquet part."""
        columns = {
            "subject_id": pa.array(self.writers.tolist(), pa.string()),
            "label": pa.array(self.labels, pa.int64()),
            "image": pa.array([image.tobytes() for image in self.images], pa.binary()),
        }
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        return sink.getvalue()

    def of(self, writers: list[str]) -> Flags:
        """Return which rows belong to these writers. -> (n,)"""
        return np.isin(self.writers, writers)

    def at(self, rows: Flags) -> "Rows":
        """Return the chosen rows."""
        return Rows(self.writers[rows], self.labels[rows], self.images[rows])


@dataclass(frozen=True)
class Digits:
    """Training rows, a holdout, and the two sets of writers who ask to be erased."""

    train: Rows
    holdout: Rows
    first: list[str]
    group: list[str]

    @property
    def erased(self) -> list[str]:
        """Everyone who asks to be erased."""
        return self.first + self.group

    @property
    def retained(self) -> Rows:
        """The training rows of everyone else."""
        return self.train.at(~self.train.of(self.erased))


def graph() -> bytes:
    """Return the representation: wavelets from formulas alone, without any training data."""
    return build(SIDE, SIDE, stride=2)


def digits() -> Digits:
    """Return the data. The group's writers mostly wrote zeros and sevens; the first writers are mixed."""
    data = load_digits()
    order = np.random.default_rng(SEED).permutation(len(data.target))
    images, labels = data.data[order].astype(np.uint8), data.target[order].astype(np.int64)
    cut = int(len(labels) * (1 - HOLDOUT_SHARE))
    train = Rows(_writers(labels[:cut], "writer"), labels[:cut], images[:cut])
    holdout = Rows(_writers(labels[cut:], "unseen"), labels[cut:], images[cut:])
    biased = biased_deletion(
        train.labels, round(cut * GROUP_SHARE), seed=SEED, subjects=train.writers.astype(object)
    )
    group = sorted(set(train.writers[biased.rows].tolist()))
    others = np.array(sorted(set(train.writers.tolist()) - set(group)))
    first = np.random.default_rng(SEED).choice(others, FIRST_WRITERS, replace=False).tolist()
    return Digits(train, holdout, sorted(first), group)


def features(images: Pixels) -> Floats:
    """Return what the service computes from images: wavelet features scaled to length 1. (n, 64) -> (n, k)"""
    session = onnxruntime.InferenceSession(graph(), providers=["CPUExecutionProvider"])
    scaled = (images / np.float32(DARKEST)).astype(np.float32).reshape(-1, 1, SIDE, SIDE)
    (found,) = session.run(["features"], {"image": scaled})
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found / lengths, np.float32)


def distorted_copies(rows: Rows, copies: int) -> Rows:
    """Return the rows and slightly turned, scaled and shifted copies of them, `copies` times in all."""
    rng = np.random.default_rng(SEED)
    images = [rows.images, *(_distort(rows.images, rng) for _ in range(copies - 1))]
    return Rows(np.tile(rows.writers, copies), np.tile(rows.labels, copies), np.concatenate(images))


def _distort(images: Pixels, rng: np.random.Generator) -> Pixels:
    centre = np.full(2, (SIDE - 1) / 2)
    distorted = np.empty_like(images)
    for row, image in enumerate(images):
        angle, scale = np.radians(rng.uniform(-12, 12)), rng.uniform(0.9, 1.1)
        turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        offset = centre - turn @ centre + rng.uniform(-0.7, 0.7, 2)
        pixels = image.reshape(SIDE, SIDE).astype(np.float64)
        moved = ndimage.affine_transform(pixels, turn, offset=offset, order=1)
        distorted[row] = np.rint(moved.clip(0, DARKEST)).astype(np.uint8).ravel()
    return distorted


def _writers(labels: Ints, prefix: str) -> npt.NDArray[np.str_]:
    """Give each writer a few images of one digit, so that erasing people changes the class mix."""
    seen: dict[int, int] = {}
    names = []
    for label in labels.tolist():
        place = seen[label] = seen.get(label, -1) + 1
        names.append(f"{prefix}-{label}-{place // IMAGES_PER_WRITER}")
    return np.array(names)
