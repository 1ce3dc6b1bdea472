"""Datasets are inspected row by row. Problems name a part and a row, never what the row contains."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from app.core.storage import Storage, StorageError
from app.gateway.erasures.schemas import SubjectId
from worker.data import datasets
from worker.data.inspection import Distinct, Expected, Inspection


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


def test_every_problem_of_the_columns_is_reported(storage: Storage) -> None:
    path = _write(storage, subject_id=[1, 2], label=[0.5, 1.0], features=_features(np.ones((2, 3))))
    assert _inspect(storage, path).problems == [
        "dataset p: subject_id must be a string column, not int64",
        "dataset p: label must be an integer, not double",
        "dataset p: features has 3 values per row, but the manifest says 2",
    ]
    path = _write(storage, other=[1])
    assert [p.removeprefix("dataset p: ") for p in _inspect(storage, path).problems] == [
        "the column subject_id is missing",
        "the column label is missing",
        "the column features is missing",
    ]


def test_a_file_that_is_not_parquet_is_reported(storage: Storage) -> None:
    storage.write("data/part", [b"canary of a person"])
    assert _inspect(storage, "data/part").problems == ["dataset p: not a Parquet file"]


def test_every_problem_of_the_rows_is_reported_with_its_first_row_and_no_values(storage: Storage) -> None:
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
        "dataset p: row 1: the label is not in 0 … 1 (2 rows in total)",
        "dataset p: row 4: the features are missing",
        "dataset p: row 1: a feature is missing, NaN or infinite (2 rows in total)",
    ]


UNUSABLE = ["", "a" * 257, "two\nlines", "tab\t", "\x00", "delete\x7f"]
USABLE = ["canary", " ", "é" * 256, "a" * 256, "\u200bcanary", "😀" * 256]


def test_registration_accepts_exactly_the_identifiers_that_a_request_can_name(storage: Storage) -> None:
    request = TypeAdapter[str](SubjectId)
    for subject in UNUSABLE:
        with pytest.raises(ValidationError):
            request.validate_python(subject)
    for subject in USABLE:
        request.validate_python(subject)
    subjects = [*USABLE, *UNUSABLE]
    path = _write(
        storage,
        subject_id=subjects,
        label=[0, 1] * (len(subjects) // 2),
        features=_features(np.ones((len(subjects), 2))),
    )
    assert _inspect(storage, path).problems == [
        "dataset p: row 6: subject_id must have 1 to 256 characters, none of them a control character "
        "(6 rows in total)"
    ]


def test_row_numbers_continue_across_batches(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "BATCH_ROWS", 2)
    labels = [0, 1, 0, 1, 9]
    path = _write(storage, subject_id=list("abcde"), label=labels, features=_features(np.ones((5, 2))))
    assert _inspect(storage, path).problems == ["dataset p: row 4: the label is not in 0 … 1"]


def test_real_targets_must_be_finite(storage: Storage) -> None:
    path = _write(storage, subject_id=["a", "b"], label=[0.5, np.nan], features=_features(np.ones((2, 2))))
    found = _inspect(storage, path, classes=None)
    assert found.problems == ["dataset p: row 1: the label is NaN or infinite"]


def test_a_holdout_part_may_lack_identifiers(storage: Storage) -> None:
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


def test_people_are_counted_across_parts_and_shared_ones_are_found() -> None:
    one, other = Distinct(), Distinct()
    one.add(pa.array(["a", "b", "a"]))
    one.add(pa.array(["b", "c"]))
    other.add(pa.array(["c", "d"]))
    assert (len(one.seen), one.shared(other)) == (3, 1)


@pytest.mark.parametrize(("people", "described"), [(19, False), (20, True)])
def test_class_sizes_are_shown_only_if_each_class_has_enough_people(
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
        patch.setattr(datasets, "file_batches", no_row)
        found = _inspect(storage, path, most_bytes=100_000)
        assert found.problems == [
            "dataset p: too many rows: unpacked, the dataset would exceed max_dataset_bytes"
        ]
        patch.setattr("worker.data.datasets.shutil.disk_usage", lambda _: SimpleNamespace(free=100_000))
        with pytest.raises(datasets.DatasetError, match="480000 bytes in the scratch folder"):
            datasets.memory_map(storage, [path], 2, tmp_path / "rows")
    assert _inspect(storage, path, most_bytes=480_000).problems == []


def test_batches_of_wide_rows_are_short(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "BATCH_BYTES", 100)
    path = _write(storage, subject_id=list("abcde"), label=[0] * 5, features=_features(np.ones((5, 5))))
    assert [batch.num_rows for batch in datasets.batches(storage, path, ["features"])] == [2, 2, 1]


def test_a_file_with_another_digest_is_refused(storage: Storage) -> None:
    stored = storage.write("data/part", [b"as it was sent"])
    datasets.check_bytes(storage, stored.path, stored.sha256)
    storage.write("data/part", [b"as it became"])
    with pytest.raises(StorageError, match="not the file that was stored"):
        datasets.check_bytes(storage, stored.path, stored.sha256)


def test_a_wrong_file_is_refused_at_the_end_of_the_block_that_reads_it(storage: Storage) -> None:
    stored = storage.write("data/part", [b"as it was sent"])
    with datasets.checking_bytes(storage, [(stored.path, stored.sha256)]):
        storage.open(stored.path).close()
    with (
        pytest.raises(StorageError, match="not the file that was stored"),
        datasets.checking_bytes(storage, [(stored.path, "00" * 32)]),
    ):
        raise pa.ArrowInvalid("the wrong file is damaged, too")
    with (
        pytest.raises(pa.ArrowInvalid, match="the right file"),
        datasets.checking_bytes(storage, [(stored.path, stored.sha256)]),
    ):
        raise pa.ArrowInvalid("the right file is damaged")


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.large_list(pa.float64())]
)
def test_the_rows_copied_while_rewriting_are_those_of_the_new_file(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(datasets, "BATCH_ROWS", 2)
    first = _write(storage, "data/first", **_lists([0, 1], [2, 3], [4, 5], [6, 7], [8, 9], kind=kind))
    second = _write(storage, "data/second", **_lists([1, 1], [2, 2], [3, 3], kind=kind))
    with datasets.RowWriter(tmp_path / "copied", 2, datasets.precision(storage, [first, second])) as writer:
        datasets.rewrite_without(storage, first, ["s0", "s1", "s4"], "data/new", tmp_path, copy_to=writer)
        datasets.copy_rows(storage, second, writer)
        copied = writer.map()
    mapped = datasets.memory_map(storage, ["data/new", second], 2, tmp_path / "rows")
    assert copied.features.tolist() == [[4, 5], [6, 7], [1, 1], [2, 2], [3, 3]]
    assert copied.features.dtype == mapped.features.dtype
    assert copied.features.tobytes() == mapped.features.tobytes()
    assert copied.labels.tobytes() == mapped.labels.tobytes()


def test_a_rewritten_part_keeps_everyone_elses_rows(storage: Storage, tmp_path: Path) -> None:
    path = _write(storage, **GOOD)
    datasets.rewrite_without(storage, path, ["a"], "data/new", tmp_path)
    assert list(datasets.subjects(storage, "data/new")) == ["b"]


def test_a_rewritten_part_carries_no_dictionary_metadata_or_extra_column(
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


def test_a_small_file_that_repeats_a_large_image_is_read_in_small_batches(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "BATCH_BYTES", 8 << 20)
    path = _write(storage, label=np.arange(200), image=[bytes(1 << 20)] * 200)
    assert len(b"".join(storage.read(path))) < 1 << 20
    batches = list(datasets.batches(storage, path, ["label", "image"]))
    assert max(batch.nbytes for batch in batches) < 12 << 20
    assert [label for batch in batches for label in batch.column("label").to_pylist()] == list(range(200))


def test_small_raw_rows_are_read_in_full_batches(storage: Storage) -> None:
    path = _write(storage, text=[f"text {row}" for row in range(150)])
    batches = list(datasets.batches(storage, path, ["text"]))
    assert [batch.num_rows for batch in batches] == [64, 64, 22]
    assert [text for batch in batches for text in batch.column("text").to_pylist()][149] == "text 149"


def test_rows_that_are_far_too_large_are_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "RAW_PIECE_BYTES", 1 << 20)
    path = _write(storage, image=[bytes(1 << 19)] * 8)
    with pytest.raises(datasets.DatasetError, match="send smaller images or texts"):
        list(datasets.batches(storage, path, ["image"]))


def _lists(*rows: list[float] | None, kind: pa.DataType | None = None) -> dict[str, Any]:
    return {
        "subject_id": [f"s{i}" for i in range(len(rows))],
        "label": [0] * len(rows),
        "features": pa.array(rows, kind or pa.list_(pa.float32())),
    }


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64())])
def test_lists_without_a_fixed_size_are_read_like_others(
    storage: Storage, tmp_path: Path, kind: pa.DataType
) -> None:
    path = _write(storage, **_lists([1, 2], [3, 4], [5, 6], kind=kind))
    assert _inspect(storage, path).problems == []
    datasets.rewrite_without(storage, path, ["s1"], "data/new", tmp_path)
    for source, rows in ((path, [[1, 2], [3, 4], [5, 6]]), ("data/new", [[1, 2], [5, 6]])):
        mapped = datasets.memory_map(storage, [source], 2, tmp_path / "rows")
        assert mapped.features.tolist() == rows
        assert mapped.features.dtype == kind.value_type.to_pandas_dtype()
        span = datasets.memory_map(storage, [source], 2, tmp_path / "rows", span=range(1, 2))
        assert span.features.tolist() == rows[1:2]


def test_the_first_row_of_another_length_is_named(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "BATCH_ROWS", 2)
    path = _write(storage, **_lists([1, 2], [3, 4], None, [5, 6, 7], [8], [], [float("nan"), 1]))
    assert _inspect(storage, path).problems == [
        "dataset p: row 2: the features are missing",
        "dataset p: row 3: the number of features is not 2, as the manifest says (3 rows in total)",
        "dataset p: row 6: a feature is missing, NaN or infinite",
    ]
    ragged = _write(storage, **_lists([1, 2], [3, 4, 5, 6], []))
    with pytest.raises(datasets.DatasetError, match="the number of features is not 2"):
        datasets.memory_map(storage, [ragged], 2, tmp_path / "rows")


def test_rows_that_would_exhaust_the_memory_are_refused_unread(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "BATCH_BYTES", 100)
    monkeypatch.setattr(datasets, "file_batches", lambda *_: pytest.fail("a row was read"))
    path = _write(storage, **_lists([1, 2], [0.0] * 1000))
    assert _inspect(storage, path).problems == [
        "dataset p: rows 0 to 1: the number of features is not 2, as the manifest says"
    ]


def test_batches_of_wide_lists_without_a_fixed_size_are_short(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "BATCH_BYTES", 100)
    path = _write(storage, **_lists(*[[1.0] * 5] * 5))
    assert [batch.num_rows for batch in datasets.batches(storage, path, ["features"])] == [2, 2, 1]
