"""Tokenizers, images, texts and vectors that must be refused, each with a part of the reason."""

import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from onnx import helper
from PIL import Image
from tokenizers import Tokenizer, processors

from lethe.certificate.representation import VectorInput
from tests.representations import IMAGES, SIDE, TEXTS, WORDS, image_graph, pictures, png, text_graph
from tests.representations import tokenizer_json as make_tokenizer
from tests.unit.worker.representation.case import SECRET, Case
from tests.unit.worker.representation.vectors import (
    LIMITS,
    WIDTH,
    declare,
    open_encoder,
    tensor,
    to_bytes,
    vector_model,
    vectors,
)
from worker.representation.errors import RepresentationError, RowError
from worker.representation.limits import Limits
from worker.representation.rows import Vectors, open_reader

_TRAILER = 20  # bytes of a PNG file after its last pixel: checksums and the end mark


def cases() -> Iterator[Case]:
    """Yield every tokenizer and row to refuse."""
    yield from _truncated_images()
    yield from _other_files()
    yield from _bombs()
    yield from _unusable_images()
    yield from _image_columns()
    yield from _tokenizers()
    yield from _texts()
    yield from _vectors()
    yield from _outputs()


def _read(
    name: str,
    rows: pa.Array,
    reason: str,
    fields: dict[str, Any],
    *,
    tokenizer: bytes | None = None,
    limits: Limits = LIMITS,
    error: type[RepresentationError] | type[RowError] = RowError,
    **changes: Any,
) -> Case:
    """Return a case that reads rows without running a graph."""
    declaration = declare(fields, **changes)

    def attempt() -> object:
        return open_reader(declaration, tokenizer, limits).read(rows, 0, len(rows))

    return Case(name, attempt, error, reason)


# -- images -------------------------------------------------------------------------------------------------


def picture(kind: str, **options: Any) -> bytes:
    """Return an image of the declared size as a file of this format."""
    sink = io.BytesIO()
    Image.fromarray(pictures(1)[1][0]).save(sink, kind, **options)
    return sink.getvalue()


def _image(name: str, content: bytes | None, reason: str, **changes: Any) -> Case:
    return _read(name, pa.array([content], pa.binary()), reason, IMAGES, **changes)


def _truncated_images() -> Iterator[Case]:
    for kind in ("PNG", "JPEG"):
        content = picture(kind)
        for share in range(1, 16):
            size = (len(content) - _TRAILER) * share // 16
            yield _image(f"{kind} cut off after {size} bytes", content[:size], "")
    interlaced = picture("JPEG", progressive=True)
    yield _image("half of a progressive JPEG", interlaced[: len(interlaced) // 2], "")


def _other_files() -> Iterator[Case]:
    for kind in ("GIF", "BMP", "TIFF", "WEBP", "PDF", "PPM", "TGA", "ICO", "JPEG2000", "EPS"):
        yield _image(f"a {kind} file", picture(kind), "neither a PNG nor a JPEG")
    for name, content in {
        "a text": SECRET.encode() * 20,
        "an SVG file": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "a PNG's first byte": b"\x89",
        "zeros": bytes(64),
    }.items():
        yield _image(f"{name} as an image", content, "neither a PNG nor a JPEG")
    yield _image("an empty image", b"", "empty")
    yield _image("no image", None, "the image is missing")
    yield _image("only a PNG signature", b"\x89PNG\r\n\x1a\n", "")
    yield _image("only a JPEG signature", b"\xff\xd8\xff\xe0", "")
    yield _image("a PNG signature and text", b"\x89PNG\r\n\x1a\n" + SECRET.encode() * 50, "")
    yield _image("a JPEG signature and text", b"\xff\xd8\xff" + SECRET.encode() * 50, "")
    yield _image("a GIF behind a PNG signature", b"\x89PNG\r\n\x1a\n" + picture("GIF"), "")
    yield _image("a PNG in a JPEG", b"\xff\xd8\xff\xe0" + picture("PNG"), "")


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return one chunk of a PNG file."""
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def made_png(
    width: int, height: int, data: bytes, *, depth: int = 8, colour: int = 0, extra: bytes = b""
) -> bytes:
    """Return a PNG file that says it has this size, with any data."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), extra, chunk(b"IDAT", data), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _resized_jpeg(width: int, height: int) -> bytes:
    """Return a JPEG file whose header says another size."""
    content = bytearray(picture("JPEG"))
    start = content.index(b"\xff\xc0") + 5
    content[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def _bombs() -> Iterator[Case]:
    bomb = zlib.compress(bytes(20_000_000), 9)
    for width, height in (
        (50_000, 50_000),
        (2**31 - 1, 1),
        (1, 2**31 - 1),
        (65_000, 1_000),
        (2**31 - 1,) * 2,
    ):
        yield _image(
            f"a PNG that says {width} x {height}", made_png(width, height, bomb), "", resize="bilinear"
        )
    yield _image("a JPEG that says 65000 x 65000", _resized_jpeg(65_000, 65_000), "pixels", resize="bicubic")
    text = chunk(b"zTXt", b"Comment\0\0" + bomb)
    yield _image("a PNG with a bomb in its text", made_png(SIDE, SIDE, b"", extra=text), "")
    profile = chunk(b"iCCP", b"x\0\0" + bomb)
    yield _image("a PNG with a bomb in its profile", made_png(SIDE, SIDE, b"", extra=profile), "")
    yield _image(
        "an image of too many pixels",
        png(np.zeros((11, 10), np.uint8)),
        "more than 100 pixels",
        resize="bilinear",
        limits=replace(LIMITS, image_pixels=100),
    )
    content = picture("PNG")
    yield _image(
        "an image file of too many bytes",
        content,
        "larger",
        limits=replace(LIMITS, image_bytes=len(content) - 1),
    )


def _unusable_images() -> Iterator[Case]:
    good = zlib.compress(bytes((SIDE + 1) * SIDE))
    damaged = bytearray(picture("PNG"))
    damaged[40] ^= 0xFF
    for name, content in {
        "a PNG without pixels": made_png(SIDE, SIDE, b""),
        "a PNG with too few pixels": made_png(SIDE, SIDE, zlib.compress(b"\0")),
        "a PNG that is not compressed": made_png(SIDE, SIDE, bytes(72)),
        "a PNG of a depth of 3": made_png(SIDE, SIDE, good, depth=3),
        "a PNG of an unknown colour type": made_png(SIDE, SIDE, good, colour=5),
        "a PNG of no width": made_png(0, SIDE, good),
        "a PNG of no height": made_png(SIDE, 0, good),
        "a PNG with a damaged byte": bytes(damaged),
        "a PNG without a header": b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", good) + chunk(b"IEND", b""),
    }.items():
        yield _image(name, content, "")
    for height, width in ((SIDE, SIDE + 1), (SIDE - 1, SIDE), (1, 1), (SIDE * SIDE, 1)):
        content = png(np.zeros((height, width), np.uint8))
        yield _image(f"a PNG of {width} x {height}", content, "8 pixels wide and 8 high")
    for size in (1, 63, 65, 192, 4096):
        yield _image(f"plain pixels of {size} bytes", b"x" * size, "needs exactly 64", encoding="uint8")
    yield _image("no plain pixels", None, "the image is missing", encoding="uint8")
    yield _image("empty plain pixels", b"", "the image is empty", encoding="uint8")
    yield _image(
        "constants that overflow",
        picture("PNG"),
        "float32 cannot hold",
        scale=1e6,
        std=[1e-300],
        error=RepresentationError,
    )


def _image_columns() -> Iterator[Case]:
    for name, rows in {
        "images as strings": pa.array([SECRET]),
        "images as numbers": pa.array([1.0]),
        "images as lists": pa.array([[1, 2]]),
        "images of a fixed size": pa.array([bytes(64)], pa.binary(64)),
        "images of no type": pa.nulls(1),
    }.items():
        yield _read(name, rows, "must be binary values", IMAGES, error=RepresentationError)
    yield _read(
        "images with a tokenizer",
        pa.array([b""], pa.binary()),
        "a tokenizer belongs to texts",
        IMAGES,
        tokenizer=make_tokenizer(),
        error=RepresentationError,
    )
    good = png(pictures(1)[1][0])
    yield Case(
        "a damaged image among good ones",
        lambda: open_encoder(image_graph(), IMAGES).encode(pa.array([good, good[:-30], good], pa.binary())),
        RowError,
        "",
    )


# -- texts --------------------------------------------------------------------------------------------------


def _with(change: Callable[[dict[str, Any]], object]) -> bytes:
    content = json.loads(make_tokenizer())
    change(content)
    return json.dumps(content).encode()


def _tokenizers() -> Iterator[Case]:
    rows = pa.array([SECRET])

    def refused(name: str, content: bytes | None, reason: str, **changes: Any) -> Case:
        return _read(name, rows, reason, TEXTS, tokenizer=content, error=RepresentationError, **changes)

    whole = make_tokenizer()
    for share in range(1, 10):
        size = len(whole) * share // 10
        yield refused(f"tokenizer cut off after {size} bytes", whole[:size], "truncated")
    not_json = (b"", b"\0", b"\xff\xfe", b"{", b"tokenizer", b"[" * 100_000, b"1" * 5000, b"{'a': 1}")
    for content in not_json:
        yield refused(f"tokenizer {content[:10]!r} of {len(content)} bytes", content, "not a JSON document")
    no_model = (b"null", b"[]", b"1", b'"x"', b"{}", b'{"model": null}', b'{"model": []}', b"NaN")
    for content in no_model:
        yield refused(f"tokenizer {content!r}", content, "it has no model")
    wrong = {
        "an empty model": lambda made: made.update(model={}),
        "a model of an unknown type": lambda made: made["model"].update(type="Unknown"),
        "a version of its own": lambda made: made.update(version="9.0"),
        "words that are numbers": lambda made: made["model"].update(vocab=[1, 2]),
        "no unknown word": lambda made: made["model"].pop("unk_token"),
        "a wrong pre-tokenizer": lambda made: made.update(pre_tokenizer={"type": "None"}),
        "a wrong normaliser": lambda made: made.update(normalizer=3),
        "a wrong decoder": lambda made: made.update(decoder="x"),
        "added tokens that are no list": lambda made: made.update(added_tokens=4),
        "a pattern that does not compile": lambda made: made.update(
            pre_tokenizer={
                "type": "Split",
                "pattern": {"Regex": "("},
                "behavior": "Isolated",
                "invert": False,
            }
        ),
    }
    for name, change in wrong.items():
        yield refused(f"tokenizer with {name}", _with(change), "cannot load the tokenizer")
    for number in (-1, 2**31, 2**70, 1.5, "1", None, [1]):
        content = _with(partial(_number_red, number=number))
        yield refused(f"tokenizer with the token id {number!r}", content, "token id")
    dropout = _with(lambda made: made.update(model=_pairs(dropout=0.5)))
    yield refused("tokenizer with dropout", dropout, "drops merges at random")
    yield refused("no tokenizer", None, "needs a tokenizer")
    small = replace(LIMITS, tokenizer_bytes=len(whole) - 1)
    yield refused("tokenizer of too many bytes", whole, "larger than", limits=small)
    for length in (1, 2):
        reason = "adds 2 special tokens"
        yield refused(f"special tokens in {length}", _framed(), reason, max_length=length)


def _pairs(**fields: Any) -> dict[str, Any]:
    """Return a model of byte pairs."""
    return {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], **fields}


def _framed() -> bytes:
    """Return a tokenizer that puts a special token before and after each text."""
    tokenizer = Tokenizer.from_str(make_tokenizer().decode())
    tokenizer.post_processor = processors.BertProcessing(("[UNK]", 0), ("red", 1))
    return tokenizer.to_str().encode()


def _texts() -> Iterator[Case]:
    def refused(name: str, rows: pa.Array, reason: str, **changes: Any) -> Case:
        return _read(name, rows, reason, TEXTS, **{"tokenizer": make_tokenizer(), **changes})

    tiny = replace(LIMITS, text_bytes=10)
    yield refused("no text", pa.array([None], pa.string()), "the text is missing")
    yield refused("an empty text", pa.array([""]), "no tokens")
    yield refused("a text of spaces", pa.array(["   \n\t"]), "no tokens")
    yield refused("a text of 11 bytes", pa.array([f"{SECRET} blue."]), "longer than 10 bytes", limits=tiny)
    yield refused("a text of 12 bytes in 6 letters", pa.array(["é" * 6]), "longer", limits=tiny)
    yield refused("a text over the default limit", pa.array(["red " * 262_145]), "longer than 1,048,576")
    for damaged in (b"\xff", b"red \xc3", b"\xed\xa0\x80", SECRET.encode() + b"\x80"):
        rows = pa.array([damaged], pa.binary()).view(pa.string())
        yield refused(f"the text {damaged!r}", rows, "not valid UTF-8")
    pairs = _with(lambda made: made.update(model=_pairs(unk_token="[UNK]")))
    yield refused("an unknown word that the vocabulary lacks", pa.array([SECRET]), "", tokenizer=pairs)
    for name, rows in {
        "texts as bytes": pa.array([SECRET.encode()]),
        "texts as numbers": pa.array([1]),
        "texts of no type": pa.nulls(1),
        "texts as a dictionary": pa.array([SECRET]).dictionary_encode(),
    }.items():
        yield refused(name, rows, "must be strings", error=RepresentationError)
    more = _with(lambda made: made["model"]["vocab"].update({"violet": len(WORDS)}))
    yield Case(
        "a token that the graph does not know",
        lambda: open_encoder(text_graph(), TEXTS, more).encode(pa.array(["violet"])),
        RepresentationError,
        "cannot run the operator Gather",
    )


# -- vectors and outputs ------------------------------------------------------------------------------------


def _vectors() -> Iterator[Case]:
    declared = VectorInput(kind="vector", width=WIDTH)

    def refused(
        name: str,
        rows: pa.Array,
        reason: str,
        error: type[RepresentationError] | type[RowError] = RepresentationError,
    ) -> Case:
        return Case(name, lambda: Vectors(declared).read(rows, 0, len(rows)), error, reason)

    def column(values: list[Any], element: pa.DataType, width: int = WIDTH) -> pa.Array:
        return pa.array(values, pa.list_(element, width))

    numbers = (np.nan, np.inf, -np.inf, 1e39, -1e300, None)
    for number in numbers:
        rows = column([[1.0, 2.0, 3.0, 4.0], [1.0, number, 3.0, 4.0]], pa.float64())
        yield refused(f"the number {number} in a vector", rows, "a value is missing, infinite", RowError)
    for number in (np.nan, np.inf):
        rows = column([[number] * WIDTH], pa.float16())
        yield refused(f"the 16-bit number {number}", rows, "a value is missing, infinite", RowError)
    for element in (pa.float32(), pa.float64()):
        rows = column([[1.0] * WIDTH, None], element)
        yield refused(f"a missing vector of {element}", rows, "the vector is missing", RowError)
    for width in (1, 3, 5):
        rows = column([[1.0] * width], pa.float32(), width)
        yield refused(f"vectors of {width} numbers", rows, f"the rows have {width} values each")
    for length in (0, 3, 5):
        rows = pa.array([[1.0] * WIDTH, [1.0] * length])
        yield refused(f"a vector of {length} numbers", rows, "does not have 4 values", RowError)
    yield refused("a missing list", pa.array([[1.0] * WIDTH, None]), "the vector is missing", RowError)
    for element in (pa.int32(), pa.int64(), pa.uint8()):
        rows = column([[1] * WIDTH], element)
        yield refused(f"vectors of {element}", rows, "must be lists of floats")
    yield refused("vectors of strings", column([[SECRET] * WIDTH], pa.string()), "must be lists")
    for name, rows in {
        "single numbers": pa.array([1.0]),
        "vectors as bytes": pa.array([bytes(16)]),
        "vectors of no type": pa.nulls(1),
    }.items():
        yield refused(name, rows, "must be lists of floats")


def _outputs() -> Iterator[Case]:
    """Yield rows that a graph turns into numbers that are not finite."""
    outputs = [tensor("features", ["N", WIDTH])]
    numbers = {"Log": (-1.0, 0.0), "Sqrt": (-1.0,), "Exp": (1e3,), "Reciprocal": (0.0,)}
    for operator, values in numbers.items():
        graph = to_bytes(vector_model([helper.make_node(operator, ["x"], ["features"])], outputs=outputs))
        for value in values:
            for scaled in ("none", "unit"):
                yield Case(
                    f"{operator} of {value}, scaled: {scaled}",
                    partial(_encode_third, graph, value, scaled),
                    RowError,
                    "infinite or not a number",
                )


def _number_red(made: Any, number: object) -> None:
    made["model"]["vocab"].update(red=number)


def _encode_third(graph: bytes, value: float, scaled: str) -> object:
    encoder = open_encoder(graph, normalisation=scaled, batch_rows=2)
    return encoder.encode(vectors([[1.0] * WIDTH, [1.0] * WIDTH, [1.0, value, 1.0, 1.0]]))
