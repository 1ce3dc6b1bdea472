"""Data is looked at row by row; problems name part and row, never what a row holds."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.settings import Settings
from app.storage import Storage, StorageError
from worker.loading import datasets, imports
from worker.loading.imports import ImportFailed
from worker.loading.inspection import Distinct, Expected, Inspection


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path / 'storage'}")


def _write(storage: Storage, path: str = "data/part", **columns: Any) -> str:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    storage.write(path, [sink.getvalue()])
    return path


def _features(rows: np.ndarray, mask: np.ndarray | None = None) -> pa.Array:
    flat = pa.array(rows.ravel())
    if mask is None:
        return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1], mask=pa.array(mask))


def _inspect(storage: Storage, path: str, **expected: Any) -> Inspection:
    inspection = Inspection(Expected(**({"width": 2, "classes": 2} | expected)))
    inspection.add(storage, "dataset p", path)
    return inspection


GOOD = {"subject_id": ["a", "b", "a"], "label": [0, 1, 1], "features": _features(np.ones((3, 2)))}


def test_good_rows_are_counted(storage: Storage) -> None:
    found = _inspect(storage, _write(storage, **GOOD))
    assert found.problems == []
    assert (found.total, dict(found.classes), len(found.subjects.seen)) == (3, {0: 1, 1: 2}, 2)


def test_every_problem_of_the_columns_is_told(storage: Storage) -> None:
    path = _write(storage, subject_id=[1, 2], label=[0.5, 1.0], features=_features(np.ones((2, 3))))
    assert _inspect(storage, path).problems == [
        "dataset p: subject_id must be a string column, not int64",
        "dataset p: label must be an integer, not double",
        "dataset p: features has 3 values a row, the manifest says 2",
    ]
    path = _write(storage, other=[1])
    assert [p.removeprefix("dataset p: ") for p in _inspect(storage, path).problems] == [
        "the column subject_id is missing",
        "the column label is missing",
        "the column features is missing",
    ]


def test_what_is_no_parquet_file_is_said_so(storage: Storage) -> None:
    storage.write("data/part", [b"canary of a person"])
    assert _inspect(storage, "data/part").problems == ["dataset p: not a Parquet file"]


def test_every_problem_of_the_rows_is_told_with_its_first_row_and_nothing_it_holds(storage: Storage) -> None:
    features = np.ones((5, 2))
    features[1, 0], features[3, 1] = np.nan, np.inf
    path = _write(
        storage,
        subject_id=["canary", None, "canary", "canary", "canary"],
        label=pa.array([0, 4711, None, -4711, 1]),
        features=_features(features, mask=np.array([False, False, False, False, True])),
    )
    assert _inspect(storage, path).problems == [
        "dataset p: row 1: subject_id is missing",
        "dataset p: row 2: the label is missing",
        "dataset p: row 1: the label is not in 0 … 1 (2 rows in all)",
        "dataset p: row 4: the features are missing",
        "dataset p: row 1: a feature is missing, NaN or infinite (2 rows in all)",
    ]


def test_row_numbers_go_on_across_batches(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "BATCH_ROWS", 2)
    labels = [0, 1, 0, 1, 9]
    path = _write(storage, subject_id=list("abcde"), label=labels, features=_features(np.ones((5, 2))))
    assert _inspect(storage, path).problems == ["dataset p: row 4: the label is not in 0 … 1"]


def test_real_targets_must_be_finite(storage: Storage) -> None:
    path = _write(storage, subject_id=["a", "b"], label=[0.5, np.nan], features=_features(np.ones((2, 2))))
    found = _inspect(storage, path, classes=None)
    assert found.problems == ["dataset p: row 1: the label is NaN or infinite"]


def test_a_holdout_part_may_name_nobody(storage: Storage) -> None:
    path = _write(storage, label=GOOD["label"], features=GOOD["features"])
    assert _inspect(storage, path, needs_subject=False).problems == []
    assert _inspect(storage, path).problems == ["dataset p: the column subject_id is missing"]
    assert datasets.holders(storage, path, ["a"]) == set()


@pytest.mark.parametrize(
    ("transform", "standardised"),
    [
        (lambda x: (x - x.mean(0)) / x.std(0), True),
        (lambda x: np.hstack([(x - x.mean(0)) / x.std(0), np.zeros((len(x), 1))]), True),
        (lambda x: x, False),
        (lambda x: x - x.mean(0), False),
        (lambda x: (x - x.mean(0)) / x.std(0) * 3, False),
    ],
)
def test_features_that_look_standardised_by_the_data_are_noticed(
    storage: Storage, transform: Any, standardised: bool
) -> None:
    rows = transform(np.random.default_rng(3).gamma(2.0, 5.0, size=(400, 5)))
    path = _write(
        storage, subject_id=["a"] * 400, label=[0, 1] * 200, features=_features(np.ascontiguousarray(rows))
    )
    assert _inspect(storage, path, width=rows.shape[1]).looks_standardised() is standardised


def test_subjects_are_counted_across_parts_and_shared_ones_found() -> None:
    one, other = Distinct(), Distinct()
    one.add(pa.array(["a", "b", "a"]))
    one.add(pa.array(["b", "c"]))
    other.add(pa.array(["c", "d"]))
    assert (len(one.seen), one.shared(other)) == (3, 1)


@pytest.mark.parametrize(("people", "described"), [(19, False), (20, True)])
def test_the_classes_are_described_by_people_not_by_rows(
    storage: Storage, people: int, described: bool
) -> None:
    subjects = [f"s{i % people}" for i in range(200)]
    labels = [int(i >= 100) for i in range(200)]
    path = _write(storage, subject_id=subjects, label=labels, features=_features(np.ones((200, 2))))
    assert _inspect(storage, path).describable() is described


def test_a_small_file_of_very_many_rows_is_refused_before_a_row_is_read(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 20_000
    path = _write(storage, subject_id=["a"] * many, label=[0] * many, features=_features(np.zeros((many, 2))))
    assert sum(len(chunk) for chunk in storage.read(path)) < many

    def no_row(*_: Any) -> Any:
        raise AssertionError("a row was read")

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "_batches", no_row)
        found = _inspect(storage, path, most_bytes=100_000)
        assert found.problems == ["dataset p: too many rows: unpacked they would pass max_dataset_bytes"]
        patch.setattr(datasets.shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000))
        with pytest.raises(datasets.DatasetError, match="480000 bytes in the working folder"):
            datasets.memory_map(storage, [path], 2, tmp_path / "rows")
    assert _inspect(storage, path, most_bytes=480_000).problems == []


def test_batches_of_wide_rows_are_short(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "BATCH_BYTES", 100)
    path = _write(storage, subject_id=list("abcde"), label=[0] * 5, features=_features(np.ones((5, 5))))
    assert [batch.num_rows for batch in datasets.batches(storage, path, ["features"])] == [2, 2, 1]


def test_bytes_that_are_not_those_recorded_are_noticed(storage: Storage) -> None:
    stored = storage.write("data/part", [b"as it was sent"])
    datasets.check_bytes(storage, stored.path, stored.sha256)
    storage.write("data/part", [b"as it became"])
    with pytest.raises(StorageError, match="not the file that was stored"):
        datasets.check_bytes(storage, stored.path, stored.sha256)


def test_a_rewritten_part_holds_everyone_else(storage: Storage, tmp_path: Path) -> None:
    path = _write(storage, **GOOD)
    datasets.rewrite_without(storage, path, ["a"], "data/new", tmp_path)
    assert list(datasets.subjects(storage, "data/new")) == ["b"]


def test_a_rewritten_part_carries_no_dictionary_metadata_or_further_column(
    storage: Storage, tmp_path: Path
) -> None:
    field = pa.field("features", GOOD["features"].type, metadata={"note": "canary"})
    table = pa.table(
        {
            "subject_id": pa.array(["canary", "b", "c"]).dictionary_encode(),
            "label": pa.array([0, 1, 1]).dictionary_encode(),
            "features": GOOD["features"],
            "name": pa.array(["canary", "x", "y"]).dictionary_encode(),
        }
    )
    table = table.set_column(2, field, GOOD["features"]).replace_schema_metadata({"note": "canary"})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    storage.write("data/part", [sink.getvalue()])
    datasets.rewrite_without(storage, "data/part", ["canary"], "data/new", tmp_path)
    written = pq.read_table(io.BytesIO(b"".join(storage.read("data/new"))))
    assert written.schema.names == ["subject_id", "label", "features"]
    assert written.schema.types == [pa.string(), pa.int64(), pa.list_(pa.float64(), 2)]
    assert not written.schema.metadata
    assert not written.schema.field("features").metadata
    assert written.column("subject_id").to_pylist() == ["b", "c"]
    assert b"canary" not in b"".join(storage.read("data/new"))


def test_an_import_is_copied_or_says_why_not(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "part").write_bytes(b"x" * 2000)
    settings = Settings(import_roots=f"file://{source}", max_upload_bytes=2048)
    assert imports.copy(settings, storage, f"file://{source}/part", "data/copy").size == 2000
    with pytest.raises(ImportFailed, match=r"could not be read \(FileNotFoundError\)"):
        imports.copy(settings, storage, f"file://{source}/nothing", "data/copy2")
    with pytest.raises(ImportFailed, match="not allow"):
        imports.copy(settings, storage, f"file://{tmp_path}/part", "data/copy2")
    (source / "part").write_bytes(b"x" * 2049)
    with pytest.raises(ImportFailed, match="longer than 2048"):
        imports.copy(settings, storage, f"file://{source}/part", "data/copy2")
    assert not storage.exists("data/copy2")
