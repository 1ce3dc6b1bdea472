"""Pages of a Parquet file are unpacked only if their headers claim a bearable size."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.storage import Storage
from worker.batch.resolve import require_readable_pages
from worker.data import datasets, page_headers
from worker.data.inspection import Expected, Inspection

COLUMNS = ("subject_id", "label", "features")
ROWS = 5000


def table(rows: int = ROWS) -> pa.Table:
    values = pa.array(np.random.default_rng(0).normal(size=2 * rows))
    return pa.table(
        {
            "subject_id": pa.array([f"p{row % 700}" for row in range(rows)]),
            "label": pa.array([row % 2 for row in range(rows)]),
            "features": pa.FixedSizeListArray.from_arrays(values, 2),
        }
    )


def written(rows: int = ROWS, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(rows), sink, **options)
    return sink.getvalue()


def headers_of(content: bytes) -> list[page_headers.PageHeader]:
    file = io.BytesIO(content)
    return [
        header
        for start, end, values in page_headers._chunks(pq.ParquetFile(file), COLUMNS)
        for header in page_headers._headers(file, start, end, values)
    ]


WRITERS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 1000},
    {"compression": "none", "use_dictionary": False, "write_statistics": False},
    {"compression": "gzip", "row_group_size": 700, "dictionary_pagesize_limit": 100},
    {"compression": "lz4", "write_page_checksum": True, "write_page_index": True, "data_page_size": 100},
    {"store_decimal_as_integer": True, "use_byte_stream_split": ["features"], "use_dictionary": False},
]


@pytest.mark.parametrize("options", WRITERS, ids=str)
def test_every_page_of_files_by_ordinary_writers_is_found(options: dict[str, Any]) -> None:
    """The values of all pages add up to those of the columns, and their sizes to what the footer says."""
    content = written(**options)
    headers, metadata = headers_of(content), pq.ParquetFile(io.BytesIO(content)).metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    assert sum(header.values for header in headers) == sum(chunk.num_values for chunk in chunks)
    assert sum(h.unpacked + h.length for h in headers) == sum(c.total_uncompressed_size for c in chunks)
    assert sum(h.packed + h.length for h in headers) == sum(c.total_compressed_size for c in chunks)


LIMIT, CLAIM = 500_000, 1_000_000


def lying() -> bytes:
    """Return a file in which the header of the first page claims to unpack to `CLAIM` bytes."""
    content = bytearray(written(use_dictionary=False, write_statistics=False))
    start, _, _ = next(page_headers._chunks(pq.ParquetFile(io.BytesIO(content)), COLUMNS))
    header = page_headers.parse_header(bytes(content[start:]))
    honest, claimed = varint(header.unpacked), varint(CLAIM)
    assert len(honest) == len(claimed)
    place = content.index(honest, start, start + header.length)
    content[place : place + len(honest)] = claimed
    return bytes(content)


def varint(number: int) -> bytes:
    """Encode a positive integer as Thrift's compact protocol does."""
    rest, encoded = number << 1, bytearray()
    while rest > 127:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*encoded, rest])


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A storage with the lying file, of which no row may be read."""
    storage = Storage(f"file://{tmp_path / 'storage'}")
    storage.write("data/part", [lying()])
    monkeypatch.setattr(page_headers, "LARGEST_PAGE", LIMIT)
    monkeypatch.setattr(datasets, "file_batches", _must_not_read)
    return storage


def _must_not_read(*_: object, **__: object) -> None:
    raise AssertionError("a page was unpacked")


def test_a_page_whose_header_claims_too_much_is_refused_before_it_is_unpacked(storage: Storage) -> None:
    inspection = Inspection(Expected(width=2, classes=2))
    inspection.add(storage, "dataset p", "data/part")
    assert inspection.problems == [
        "dataset p: a page would unpack to 1,000,000 bytes, but at most 500,000 are read; write the file "
        "with smaller pages"
    ]


def test_a_staged_part_that_nobody_inspected_is_not_unpacked_either(storage: Storage) -> None:
    with pytest.raises(datasets.DatasetError, match="a page would unpack to 1,000,000 bytes"):
        require_readable_pages(storage, "data/part")


def test_the_limit_is_far_above_the_pages_of_ordinary_writers() -> None:
    sink = io.BytesIO()
    polars.from_arrow(table(200_000)).write_parquet(sink)  # type: ignore[union-attr]
    for content in (sink.getvalue(), written(200_000, use_dictionary=False)):
        assert max(header.unpacked for header in headers_of(content)) < page_headers.LARGEST_PAGE / 50


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(content: bytes) -> None:
    try:
        header = page_headers.parse_header(content)
    except (page_headers.PageHeaderError, EOFError):
        return
    assert 0 < header.length <= len(content)
    assert header.packed >= 0


def test_a_header_that_cannot_be_read_is_damage(storage: Storage) -> None:
    content = bytearray(lying())
    start, _, _ = next(page_headers._chunks(pq.ParquetFile(io.BytesIO(content)), COLUMNS))
    content[start : start + 10] = b"\xff" * 10
    storage.write("data/damaged", [bytes(content)])
    assert datasets.page_problems(storage, "data/damaged", COLUMNS) == [
        "the file is damaged: the header of a page cannot be read"
    ]
