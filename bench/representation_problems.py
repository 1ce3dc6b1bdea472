"""The four problems of `bench.representations`: data, representation and settings of each.

λ and Δ* were chosen on the holdout alone: fitted on one random half of it and scored on the other half, with
the noise of ε = 1 and δ = 1e-5. λ is the largest of the grid within 0.15 points of the best F1. Δ* is the
largest for which the noise costs at most 0.1 points there, and at most 0.05 points for text and loans, where
the released model should be within 0.1 points of the retrained one. The scores that the benchmark reports are
on the same holdout. The training-free transform was chosen in the same way. Network, resolution and pixel
constants of CIFAR-10 were chosen on the 10,000 rows of its training set that are left out here
(`CIFAR_PUBLIC`).
"""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench import loans
from bench.backbones import efficientnet, minilm
from bench.datasets import Images, cifar10, mnist
from bench.newsgroups import Messages, newsgroups
from examples import wavelet_representation
from lethe.certificate.representation import ImageInput, Representation, TextInput, VectorInput

EPSILON, DELTA, KL, SEED = 1.0, 1e-5, 0.104, 0
CIFAR_SIDE, CIFAR_SIZE = 192, 2  # EfficientNet-Lite2 at 192 by 192 pixels
CIFAR_PUBLIC = (slice(0, 8000), slice(40_000, 42_000))  # used to choose the network, never for training
_BATCH = 5000
_HEAVY = 99.0  # how much likelier than others a row of the chosen groups is erased, as in the paper
_CALIFORNIA = 1 + loans.STATES.index("CA")

Column = Literal["features", "image", "text"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Raw rows in order, either all for training or all held out."""

    held_out: bool
    subjects: list[str]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64]  # what the erasure is biased by
    values: list[bytes] | list[str] | NDArray[np.float32]  # images, texts, or vectors (n, width)


@dataclass(frozen=True, slots=True)
class Problem:
    """One data set with its representation and the settings of its model."""

    name: str
    title: str
    family: Literal["softmax", "logistic"]
    classes: int | None  # None for the logistic family
    width: int  # numbers per row that the representation gives
    lam: float
    target: float  # Δ*
    representation: Representation
    graph_name: str  # of the cached file; names everything the graph depends on
    build_graph: Callable[[], bytes]
    build_tokenizer: Callable[[], bytes] | None
    read: Callable[[], Iterator[Batch]]
    column: Column
    bias: Mapping[int, float]  # weights of the biased erasure by group; 1 for groups not listed
    bias_text: str


def _read_mnist() -> Iterator[Batch]:
    images = mnist()
    for held_out, rows, labels in _splits(images):
        for places in _pieces(np.arange(len(labels))):
            values = [row.tobytes() for row in rows[places]]
            yield _image_batch("mnist", held_out, places, labels, values)


def _read_cifar() -> Iterator[Batch]:
    images = cifar10()
    for held_out, rows, labels in _splits(images):
        chosen = np.ones(len(labels), dtype=bool)
        for public in () if held_out else CIFAR_PUBLIC:
            chosen[public] = False
        for places in _pieces(np.flatnonzero(chosen)):
            values = [encode_png(row.reshape(images.shape)) for row in rows[places]]
            yield _image_batch("cifar", held_out, places, labels, values)


def _splits(images: Images) -> Iterator[tuple[bool, NDArray[np.uint8], NDArray[np.uint8]]]:
    yield False, images.train_images, images.train_labels
    yield True, images.test_images, images.test_labels


def _image_batch(
    prefix: str,
    held_out: bool,
    places: NDArray[np.int64],
    labels: NDArray[np.uint8],
    values: list[bytes],
) -> Batch:
    own = labels[places].astype(np.int64)
    return Batch(held_out, _subjects(prefix, held_out, places), own, own, values)


def _read_newsgroups() -> Iterator[Batch]:
    for held_out, messages in zip((False, True), newsgroups(), strict=True):
        for places in _pieces(np.arange(len(messages.labels))):
            yield _message_batch(held_out, messages, places)


def _message_batch(held_out: bool, messages: Messages, places: NDArray[np.int64]) -> Batch:
    labels = np.asarray(messages.labels, dtype=np.int64)[places]
    texts = [messages.texts[place] for place in places]
    return Batch(held_out, _subjects("message", held_out, places), labels, labels, texts)


def _read_loans() -> Iterator[Batch]:
    for batch in loans.read_loans():
        for held_out in (False, True):
            places = np.flatnonzero(batch.held_out == held_out)
            yield Batch(
                held_out,
                batch.subjects[places].tolist(),
                batch.labels[places],
                batch.states[places],
                batch.raw[places],
            )


def _pieces(places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(places), _BATCH):
        yield places[start : start + _BATCH]


def _subjects(prefix: str, held_out: bool, places: NDArray[np.int64]) -> list[str]:
    name = f"{prefix}-holdout" if held_out else prefix
    return [f"{name}-{place:05d}" for place in places]


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a colour image with channels first as a PNG file. (3, h, w) -> bytes"""
    sink = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(sink, "png", compress_level=1)
    return sink.getvalue()


def _declare(**fields: Any) -> Representation:
    return Representation(library=None, **fields)


PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem(
            name="mnist",
            title="MNIST, training-free transform",
            family="softmax",
            classes=10,
            width=wavelet_representation.feature_count(),
            lam=3e-6,
            target=0.03,
            representation=_declare(
                input=ImageInput(
                    kind="image", encoding="uint8", shape=(1, 28, 28), resize="none", scale=1 / 255
                ),
                outputs=("features",),
                normalisation="unit",
                origin="Wavelet transform from formulas alone; no training data",
                licence="Apache-2.0",
            ),
            graph_name="wavelets-28",
            build_graph=wavelet_representation.build,
            build_tokenizer=None,
            read=_read_mnist,
            column="image",
            bias={0: _HEAVY, 7: _HEAVY},
            bias_text="digits 0 and 7",
        ),
        Problem(
            name="cifar10",
            title=f"CIFAR-10, EfficientNet-Lite{CIFAR_SIZE} at {CIFAR_SIDE} pixels",
            family="softmax",
            classes=10,
            width=efficientnet.FEATURES,
            lam=3e-5,
            target=0.01,
            representation=efficientnet.declare(CIFAR_SIZE, side=CIFAR_SIDE),
            graph_name=f"efficientnet-lite{CIFAR_SIZE}-{CIFAR_SIDE}",
            build_graph=lambda: efficientnet.build(CIFAR_SIZE, side=CIFAR_SIDE),
            build_tokenizer=None,
            read=_read_cifar,
            column="image",
            bias={0: _HEAVY, 7: _HEAVY},
            bias_text="aeroplanes and horses",
        ),
        Problem(
            name="newsgroups",
            title="20 Newsgroups, MiniLM",
            family="softmax",
            classes=20,
            width=minilm.WIDTH,
            lam=1e-4,
            target=1e-3,
            representation=_declare(
                input=TextInput(kind="text", max_length=256),
                outputs=("embedding",),
                normalisation="unit",
                origin=minilm.ORIGIN,
                licence=minilm.LICENCE,
            ),
            graph_name="minilm-l6",
            build_graph=minilm.build,
            build_tokenizer=minilm.read_tokenizer,
            read=_read_newsgroups,
            column="text",
            # Two groups are too few for the KL of the other problems: together they are 9.5 % of the rows.
            bias={0: _HEAVY, 7: _HEAVY, 14: _HEAVY},
            bias_text="alt.atheism, rec.autos and sci.space",
        ),
        Problem(
            name="loans",
            title="SBA loans, logistic on fixed encodings",
            family="logistic",
            classes=None,
            width=loans.WIDTH,
            lam=1e-6,
            target=3e-3,
            representation=_declare(
                input=VectorInput(kind="vector", width=len(loans.RAW_COLUMNS)),
                outputs=("features",),
                normalisation="none",
                origin=loans.ORIGIN,
                licence=loans.LICENCE,
            ),
            graph_name="loan-encodings-2",
            build_graph=loans.build,
            build_tokenizer=None,
            read=_read_loans,
            column="features",
            bias={_CALIFORNIA: _HEAVY},
            bias_text="borrowers in California",
        ),
    )
}
