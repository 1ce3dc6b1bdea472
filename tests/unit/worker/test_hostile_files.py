"""Files that somebody built or damaged on purpose are refused in words."""

import errno
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.core.storage import Storage
from worker.data import weights
from worker.data.inspection import Expected, Inspection

UNREADABLE = "dataset p: its rows cannot be read: the file is damaged, or its text is not UTF-8"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path / 'storage'}")


def _features(rows: int) -> pa.Array:
    values = np.random.default_rng(0).normal(size=2 * rows)
    return pa.FixedSizeListArray.from_arrays(pa.array(values), 2)


def _columns(rows: int = 3) -> dict[str, Any]:
    return {
        "subject_id": pa.array([f"p{row % 7}" for row in range(rows)]),
        "label": pa.array([row % 2 for row in range(rows)]),
        "features": _features(rows),
    }


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _problems(storage: Storage, content: bytes) -> list[str]:
    storage.write("data/part", [content])
    inspection = Inspection(Expected(width=2, classes=2))
    inspection.add(storage, "dataset p", "data/part")
    return inspection.problems


def test_thousands_of_other_columns_are_not_read(storage: Storage) -> None:
    others = {f"other{number}": [1, 2, 3] for number in range(2000)}
    assert _problems(storage, _parquet(pa.table(_columns() | others))) == []


@pytest.mark.parametrize("depth", [10, 400])
def test_a_deeply_nested_column_is_refused_in_few_words(storage: Storage, depth: int) -> None:
    kind = pa.float64()
    for _ in range(depth):
        kind = pa.list_(kind)
    columns = _columns(1) | {"features": pa.array([None], kind)}
    (problem,) = _problems(storage, _parquet(pa.table(columns)))
    assert len(problem) < 300


@pytest.mark.parametrize("name", ["subject_id", "label", "features"])
def test_a_column_that_occurs_twice_is_refused(storage: Storage, name: str) -> None:
    columns = _columns()
    table = pa.Table.from_arrays([*columns.values(), columns[name]], names=[*columns, name])
    assert _problems(storage, _parquet(table)) == [f"dataset p: the column {name} occurs more than once"]


def test_identifiers_behind_a_dictionary_are_refused(storage: Storage) -> None:
    columns = _columns()
    (problem,) = _problems(
        storage, _parquet(pa.table(columns | {"subject_id": columns["subject_id"].dictionary_encode()}))
    )
    assert problem.startswith("dataset p: subject_id must be a string column, not dictionary")


def test_identifiers_that_are_not_text_are_refused(storage: Storage) -> None:
    broken = pa.array([b"\xff\xfe", b"a", b"b"], pa.binary()).view(pa.string())
    assert _problems(storage, _parquet(pa.table(_columns() | {"subject_id": broken}))) == [UNREADABLE]


def test_a_changed_byte_anywhere_in_a_part_raises_no_error_of_the_library(storage: Storage) -> None:
    content = _parquet(pa.table(_columns(64)))
    outcomes: set[str] = set()
    for place in range(0, len(content), 29):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        outcomes.update(problem.partition(":")[2][:19] for problem in _problems(storage, bytes(changed)))
    assert {" its rows cannot be", " not a Parquet file"} <= outcomes


def test_a_disk_that_fails_is_not_taken_for_a_damaged_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(OSError, match="the disk fails"):
        _problems(storage, b"PAR1")


def _safetensors(header: bytes, data: bytes = bytes(8)) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _tensor(**changes: Any) -> bytes:
    tensor = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]} | changes
    return _safetensors(json.dumps({"w": tensor}).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        b"\x80\x04c__main__\n",
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 10**9) + b"{}",
        _safetensors(b"[" * 200_000),
        _safetensors(b'{"w":' * 100_000),
        _tensor(shape=[1 << 62, 8]),
        _tensor(shape=[-1]),
        _tensor(shape=[2], data_offsets=[0, 16]),
        _tensor(data_offsets=[8, 0]),
        _tensor(dtype="OBJECT"),
        _safetensors(
            json.dumps(
                {name: {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]} for name in ("a", "b")}
            ).encode()
        ),
    ],
)
def test_a_hostile_file_of_weights_is_refused(storage: Storage, content: bytes) -> None:
    storage.write("weights/file", [content])
    with pytest.raises(weights.WeightsError, match=r"not a safetensors file|expected"):
        weights.read(storage, "weights/file", {"w": (1,)})


def test_tensors_that_nobody_asked_for_are_counted_and_not_named(storage: Storage) -> None:
    header = {f"t{n}": {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]} for n in range(2000)}
    storage.write("weights/file", [_safetensors(json.dumps(header).encode(), b"")])
    with pytest.raises(weights.WeightsError, match="2000 tensors besides W") as problem:
        weights.read(storage, "weights/file", {"W": (2, 2)})
    assert len(str(problem.value)) < 200


def test_weights_that_changed_on_disk_are_not_used(storage: Storage) -> None:
    stored = storage.write("weights/file", [_tensor()])
    assert weights.read(storage, stored.path, {"w": (1,)}, sha256=stored.sha256)
    changed = _tensor()[:-1] + b"\x01"
    storage.write(stored.path, [changed])
    assert weights.read(storage, stored.path, {"w": (1,)}), "it is still a file of weights"
    with pytest.raises(weights.WeightsError, match="not the one"):
        weights.read(storage, stored.path, {"w": (1,)}, sha256=stored.sha256)
