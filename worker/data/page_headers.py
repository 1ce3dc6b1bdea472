"""The page headers of a Parquet file, read before its pages.

A page is unpacked into as much memory as its header says, whatever the footer says, and a small page can
claim 2 GB. So the headers of the columns that will be read are looked at first. They are structs in Thrift's
compact protocol (https://github.com/apache/parquet-format, `PageHeader`).
"""

import io
from collections.abc import Collection, Iterator
from typing import IO, NamedTuple

import pyarrow.parquet as pq

LARGEST_PAGE = 256 << 20
"""The most bytes that one page may unpack to. Common writers make pages of 1 to 100 MB."""
LARGEST_HEADER = 1 << 20
MOST_PAGES = 1_000_000
"""The most pages of a file that are looked at. With pages of 1 MB, that is a terabyte."""
_PIECE = 1 << 10  # most headers are much shorter
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 0, 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)
_DEEPEST = 8
# Field numbers.
_UNPACKED, _PACKED, _DATA, _DATA_V2, _VALUES = 2, 3, 5, 8, 1


class PageHeaderError(Exception):
    """The header of a page cannot be read."""


class PageHeader(NamedTuple):
    """What the header of a page says: its sizes, how many values it has, and how long the header is."""

    unpacked: int
    packed: int
    values: int
    length: int


def largest_page(file: IO[bytes], source: pq.ParquetFile, columns: Collection[str]) -> int:
    """Return how many bytes the largest page of these columns claims to unpack to.

    Raises `PageHeaderError` if a header cannot be read.
    """
    largest = pages = 0
    for start, end, values in _chunks(source, columns):
        for header in _headers(file, start, end, values):
            largest, pages = max(largest, header.unpacked), pages + 1
            if pages > MOST_PAGES:
                raise PageHeaderError
    return largest


def _chunks(source: pq.ParquetFile, columns: Collection[str]) -> Iterator[tuple[int, int, int]]:
    """Yield where the pages of each column chunk begin and end, and the number of their values."""
    for index in range(source.metadata.num_row_groups):
        group = source.metadata.row_group(index)
        for place in range(group.num_columns):
            chunk = group.column(place)
            if chunk.path_in_schema.partition(".")[0] in columns:
                starts = [chunk.data_page_offset]
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    starts.append(chunk.dictionary_page_offset)
                yield min(starts), min(starts) + chunk.total_compressed_size, chunk.num_values


def _headers(file: IO[bytes], start: int, end: int, values: int) -> Iterator[PageHeader]:
    """Yield the headers of a chunk's pages, up to the last value, like the reader that unpacks them."""
    if start < 0:
        raise PageHeaderError
    while start < end and values > 0:
        header = _read_header(file, start, end)
        yield header
        start += header.length + header.packed
        values -= header.values


def _read_header(file: IO[bytes], start: int, end: int) -> PageHeader:
    """Read a header, from as many bytes as it takes."""
    size = _PIECE
    while True:
        file.seek(start)
        piece = file.read(min(size, end - start))
        try:
            return parse_header(piece)
        except EOFError:
            if len(piece) < size or size >= LARGEST_HEADER:
                raise PageHeaderError from None
            size *= 32


def parse_header(content: bytes) -> PageHeader:
    """Parse the header at the beginning of some bytes. Raises `EOFError` if it is longer than they are."""
    reader = _Reader(content)
    fields = reader.struct()
    inner = fields.get(_DATA) or fields.get(_DATA_V2) or {}
    values = inner.get(_VALUES, 0) if isinstance(inner, dict) else 0
    unpacked, packed = fields.get(_UNPACKED), fields.get(_PACKED)
    numbers = (unpacked, packed, values)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise PageHeaderError
    return PageHeader(int(unpacked), int(packed), int(values), reader.place)  # type: ignore[arg-type]


Value = int | dict[int, "Value"] | None
"""A number, a struct, or None for a value that is skipped."""


class _Reader:
    """Reads values of Thrift's compact protocol."""

    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)

    @property
    def place(self) -> int:
        """How many bytes were read."""
        return self._stream.tell()

    def struct(self, depth: int = 0) -> dict[int, Value]:
        """Read a struct. Return its numbers and structs by field number."""
        if depth > _DEEPEST:
            raise PageHeaderError
        fields: dict[int, Value] = {}
        number = 0
        while (first := self._bytes(1)[0]) & 15 != _STOP:
            step, kind = first >> 4, first & 15
            number = number + step if step else self._integer()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Value:
        if kind in (_TRUE, _FALSE):
            return None
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_BYTE, _DOUBLE):
            self._bytes(1 if kind == _BYTE else 8)
        elif kind == _BINARY:
            self._bytes(self._size())
        else:  # PageHeader has no lists, sets and maps
            raise PageHeaderError
        return None

    def _integer(self) -> int:
        """Read a signed integer (zigzag)."""
        size = self._size()
        return (size >> 1) ^ -(size & 1)

    def _size(self) -> int:
        """Read an unsigned integer (ULEB128)."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self._bytes(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise PageHeaderError

    def _bytes(self, count: int) -> bytes:
        if count > LARGEST_HEADER:
            raise PageHeaderError
        content = self._stream.read(count)
        if len(content) < count:
            raise EOFError
        return content
