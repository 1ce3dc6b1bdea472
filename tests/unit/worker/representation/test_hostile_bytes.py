"""Whatever bytes a file consists of, reading it works or raises one of the two errors of the package."""

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lethe.certificate.representation import Representation
from tests.representations import IMAGES, TEXTS, image_graph, text_graph, tokenizer_json
from tests.unit.worker.representation.bad_rows import picture
from tests.unit.worker.representation.case import assert_clear, reasons_of
from tests.unit.worker.representation.vectors import LIMITS, VECTORS, declare, to_bytes, vector_model
from worker.representation.check import check_representation
from worker.representation.errors import RepresentationError, RowError
from worker.representation.inspection import inspect_graph
from worker.representation.rows import open_reader

GRAPHS = {
    "vector": (to_bytes(vector_model()), declare(VECTORS)),
    "image": (image_graph(), declare(IMAGES)),
    "text": (text_graph(), declare(TEXTS)),
}
PICTURES = (picture("PNG"), picture("JPEG"), picture("JPEG", progressive=True), picture("PNG", bits=4))
Change = tuple[float, int]
changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6)


def mutated(content: bytes, flips: list[Change]) -> bytes:
    """Return the content with some bytes changed. The places are shares of its length."""
    result = bytearray(content)
    for place, bits in flips:
        result[int(place * len(result))] ^= bits
    return bytes(result)


def inspect(declaration: Representation, graph: bytes) -> None:
    """Inspect a graph. If it is refused, the reasons must be clear."""
    try:
        inspect_graph(declaration, graph, LIMITS)
    except RepresentationError as problem:
        assert_clear(reasons_of(problem))


def read_image(content: bytes, resize: str) -> None:
    """Read an image. If it is refused, the reason must be clear."""
    reader = open_reader(declare(IMAGES, resize=resize), None, LIMITS)
    try:
        (row,) = reader.read(pa.array([content], pa.binary()), 0, 1)
    except RowError as problem:
        assert_clear(reasons_of(problem))
    else:
        assert row.shape == (1, 8, 8)


def read_text(tokenizer: bytes, text: str) -> None:
    """Read a text with a tokenizer. If either is refused, the reasons must be clear."""
    try:
        reader = open_reader(declare(TEXTS), tokenizer, LIMITS)
        (tokens,) = reader.read(pa.array([text], pa.string()), 0, 1)
    except (RepresentationError, RowError) as problem:
        assert_clear(reasons_of(problem))
    else:
        assert tokens.shape[0] == 3
        assert 1 <= tokens.shape[1] <= 16


@settings(max_examples=300)
@given(content=st.binary(max_size=400), kind=st.sampled_from(sorted(GRAPHS)))
def test_random_bytes_are_no_graph(content: bytes, kind: str):
    with pytest.raises(RepresentationError) as caught:
        inspect_graph(GRAPHS[kind][1], content, LIMITS)
    assert_clear(reasons_of(caught.value))


@settings(max_examples=1500)
@given(flips=changes, kind=st.sampled_from(sorted(GRAPHS)))
def test_a_changed_graph_is_accepted_or_refused_clearly(flips: list[Change], kind: str):
    graph, declaration = GRAPHS[kind]
    inspect(declaration, mutated(graph, flips))


@pytest.mark.parametrize("kind", ["vector", "text"])
def test_a_graph_with_any_one_byte_changed_is_accepted_or_refused_clearly(kind: str):
    graph, declaration = GRAPHS[kind]
    for place in range(len(graph)):
        for bits in (0x01, 0x08, 0x80, 0xFF):
            inspect(declaration, graph[:place] + bytes([graph[place] ^ bits]) + graph[place + 1 :])


@settings(max_examples=300)
@given(start=st.integers(0, 399), size=st.integers(0, 40), filling=st.binary(max_size=40))
def test_a_graph_with_a_piece_replaced_is_accepted_or_refused_clearly(start: int, size: int, filling: bytes):
    graph, declaration = GRAPHS["text"]
    inspect(declaration, graph[:start] + filling + graph[start + size :])


@settings(max_examples=200)
@given(content=st.binary(max_size=300), start=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"]))
def test_random_bytes_are_no_image(content: bytes, start: bytes):
    read_image(start + content, "bilinear")


@settings(max_examples=1000)
@given(flips=changes, original=st.sampled_from(PICTURES), resize=st.sampled_from(["none", "bicubic"]))
def test_a_changed_image_is_read_or_refused_clearly(flips: list[Change], original: bytes, resize: str):
    read_image(mutated(original, flips), resize)


@settings(max_examples=200)
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_random_bytes_are_no_tokenizer(content: bytes):
    with pytest.raises(RepresentationError) as caught:
        open_reader(declare(TEXTS), content, LIMITS)
    assert_clear(reasons_of(caught.value))


@settings(max_examples=500)
@given(flips=changes, text=st.text(max_size=30))
def test_a_changed_tokenizer_is_read_or_refused_clearly(flips: list[Change], text: str):
    read_text(mutated(tokenizer_json(), flips), text)


@settings(max_examples=200)
@given(text=st.text(max_size=100))
@example(text="\0")
@example(text="red" * 1000)
@example(text="\u202e\U0001f600 red")
def test_any_text_is_read_or_refused_clearly(text: str):
    read_text(tokenizer_json(), text)


@settings(max_examples=5)
@given(flips=changes)
def test_a_changed_graph_does_no_harm_to_the_process_that_checks_it(flips: list[Change]):
    graph, declaration = GRAPHS["vector"]
    with suppress(RepresentationError):
        checked = check_representation(declaration, mutated(graph, flips), None, limits=LIMITS)
        assert checked.width >= 1
