"""Tables of every kind become the same Parquet file, and a bad one is refused with its row and column."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lethe.integrations.errors import BadTable, MissingLibrary
from lethe.integrations.tables import write_parquet

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
LONG = {"person": ["a", "b", "a"], "kind": [1, 0, 1], "features": ROWS}
WIDE = {"person": ["a", "b", "a"], "f_0": [1.0, 3.0, 5.0], "kind": [1, 0, 1], "f_1": [2.0, 4.0, 6.0]}
COLUMNS = {"subject": "person", "label": "kind"}


def _csv(folder: Path, columns: dict[str, Any]) -> Path:
    path = folder / "people.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def _parquet(folder: Path, table: pa.Table) -> Path:
    path = folder / "people.parquet"
    pq.write_table(table, path)
    return path


LONG_SOURCES = {
    "mapping": lambda _: LONG,
    "mapping of arrays": lambda _: LONG | {"features": np.array(ROWS)},
    "pandas": lambda _: pd.DataFrame(LONG),
    "pandas with arrays": lambda _: pd.DataFrame(LONG | {"features": list(np.array(ROWS))}),
    "pandas with categories": lambda _: pd.DataFrame(LONG | {"person": pd.Categorical(["a", "b", "a"])}),
    "polars": lambda _: pl.DataFrame(LONG),
    "polars with arrays": lambda _: pl.DataFrame(LONG | {"features": np.array(ROWS)}),
    "arrow": lambda _: pa.table(LONG),
    "arrow with large lists": lambda _: pa.table(
        LONG | {"features": pa.array(ROWS, pa.large_list(pa.float64()))}
    ),
    "arrow with fixed-size lists": lambda _: pa.table(
        LONG | {"features": pa.array(ROWS, pa.list_(pa.float64(), 2))}
    ),
    "Parquet file": lambda folder: _parquet(folder, pa.table(LONG)),
}
WIDE_SOURCES = {
    "mapping": lambda _: WIDE,
    "pandas": lambda _: pd.DataFrame(WIDE),
    "polars": lambda _: pl.DataFrame(WIDE),
    "arrow": lambda _: pa.table(WIDE),
    "CSV file": lambda folder: _csv(folder, WIDE),
    "Parquet file": lambda folder: _parquet(folder, pa.table(WIDE)),
}


def _assert_canonical(path: Path) -> None:
    table = pq.read_table(path)
    assert table.schema.names == ["subject_id", "label", "features"]
    assert table.schema.types == [pa.string(), pa.int64(), pa.list_(pa.float64(), 2)]
    assert table.schema.metadata is None
    assert table.to_pydict() == {"subject_id": ["a", "b", "a"], "label": [1, 0, 1], "features": ROWS}


@pytest.mark.parametrize("source", LONG_SOURCES.values(), ids=list(LONG_SOURCES))
def test_a_list_column_of_any_kind_is_written_as_a_fixed_size_list(source: Any, tmp_path: Path) -> None:
    written = write_parquet(source(tmp_path), tmp_path / "part.parquet", **COLUMNS)
    _assert_canonical(written.path)
    assert (written.rows, written.column, written.width) == (3, "features", 2)
    assert (written.feature_names, written.classes) == ((), None)


@pytest.mark.parametrize("source", WIDE_SOURCES.values(), ids=list(WIDE_SOURCES))
def test_wide_columns_are_joined_in_the_order_of_the_table(source: Any, tmp_path: Path) -> None:
    written = write_parquet(source(tmp_path), tmp_path / "part.parquet", **COLUMNS, features="f_*")
    _assert_canonical(written.path)
    assert written.feature_names == ("f_0", "f_1")
    again = write_parquet(source(tmp_path), tmp_path / "swapped.parquet", **COLUMNS, features=["f_1", "f_0"])
    assert pq.read_table(again.path)["features"].to_pylist()[0] == [2.0, 1.0]


def test_a_numpy_array_comes_with_its_subjects_and_labels(tmp_path: Path) -> None:
    written = write_parquet(
        np.array(ROWS), tmp_path / "p.parquet", subject=["a", "b", "a"], label=np.array([1, 0, 1])
    )
    _assert_canonical(written.path)


def test_single_precision_is_kept(tmp_path: Path) -> None:
    written = write_parquet(
        np.array(ROWS, np.float32), tmp_path / "p.parquet", subject=[1, 2, 3], label=[0.5, 1.5, 2.5]
    )
    table = pq.read_table(written.path)
    assert table.schema.types == [pa.string(), pa.float64(), pa.list_(pa.float32(), 2)]
    assert table["subject_id"].to_pylist() == ["1", "2", "3"]


def test_a_file_larger_than_a_batch_is_written_in_full(tmp_path: Path) -> None:
    count = 20_001
    columns = {"person": [f"p{i}" for i in range(count)], "kind": ["even", "odd"] * (count // 2) + ["even"]}
    path = _csv(tmp_path, columns | {"f_0": np.arange(count), "f_1": np.arange(count) / 3})
    written = write_parquet(path, tmp_path / "p.parquet", **COLUMNS, features="f_*")
    table = pq.read_table(written.path)
    assert (written.rows, table.num_rows, written.classes) == (count, count, ("even", "odd"))
    assert table["label"].to_pylist()[:3] == [0, 1, 0]
    assert table["features"].to_pylist()[-1] == [count - 1, (count - 1) / 3]


def test_class_names_become_positions_and_are_returned(tmp_path: Path) -> None:
    named = WIDE | {"kind": ["malignant", "benign", "malignant"]}
    first = write_parquet(named, tmp_path / "p.parquet", **COLUMNS, features="f_*")
    assert first.classes == ("benign", "malignant")
    assert pq.read_table(first.path)["label"].to_pylist() == [1, 0, 1]
    ordered = ("malignant", "benign")
    second = write_parquet(named, tmp_path / "q.parquet", **COLUMNS, features="f_*", classes=ordered)
    assert pq.read_table(second.path)["label"].to_pylist() == [0, 1, 0]
    assert second.classes == ordered


@pytest.mark.parametrize(
    ("labels", "written"),
    [([3, 5, 3], [3, 5, 3]), ([0.5, 1, 2], [0.5, 1.0, 2.0]), (["3", "7", "3"], [3, 7, 3])],
)
def test_numbers_in_a_csv_file_stay_numbers(tmp_path: Path, labels: list[Any], written: list[Any]) -> None:
    path = _csv(tmp_path, WIDE | {"kind": labels})
    table = write_parquet(path, tmp_path / "p.parquet", **COLUMNS, features="f_*")
    assert pq.read_table(table.path)["label"].to_pylist() == written
    assert table.classes is None


def test_numeric_classes_are_looked_up_in_a_csv_file_too(tmp_path: Path) -> None:
    path = _csv(tmp_path, WIDE | {"kind": [30, 10, 30]})
    table = write_parquet(path, tmp_path / "p.parquet", **COLUMNS, features="f_*", classes=[10, 20, 30])
    assert pq.read_table(table.path)["label"].to_pylist() == [2, 0, 2]


def test_a_csv_file_may_come_with_labels_of_its_own(tmp_path: Path) -> None:
    path = _csv(tmp_path, WIDE)
    for labels, classes in ((np.array([1, 0, 1]), None), ([True, False, True], None), ([7, 5, 7], [5, 7])):
        written = write_parquet(
            path, tmp_path / "p.parquet", subject="person", label=labels, features="f_*", classes=classes
        )
        _assert_canonical(written.path)


def test_integers_that_are_not_exact_as_floats_are_rounded(tmp_path: Path) -> None:
    table = write_parquet(
        WIDE | {"f_1": [2**60 + 1, 2, 3]}, tmp_path / "p.parquet", **COLUMNS, features="f_*"
    )
    assert pq.read_table(table.path)["features"].to_pylist()[0] == [1.0, float(2**60)]


def test_empty_batches_are_passed_over(tmp_path: Path) -> None:
    batches = [pa.record_batch(LONG).slice(0, 0), pa.record_batch(LONG)]
    _assert_canonical(write_parquet(pa.Table.from_batches(batches), tmp_path / "p.parquet", **COLUMNS).path)


def test_images_and_texts_keep_their_column(tmp_path: Path) -> None:
    columns = LONG | {"photo": [b"1", b"2", b"3"], "letter": ["x", "y", "z"]}
    for name, column in (("photo", "image"), ("letter", "text")):
        written = write_parquet(pa.table(columns), tmp_path / "p.parquet", **COLUMNS, features=name)
        assert (written.column, written.width) == (column, None)
        assert pq.read_table(written.path).schema.names == ["subject_id", "label", column]
    path = _csv(tmp_path, {"person": list("abc"), "kind": [0, 1, 0], "letter": ["x", "y", "z"]})
    assert write_parquet(path, tmp_path / "p.parquet", **COLUMNS, features="letter").column == "text"


def test_a_holdout_may_go_without_identifiers(tmp_path: Path) -> None:
    written = write_parquet(LONG, tmp_path / "p.parquet", subject=None, label="kind")
    assert pq.read_table(written.path).schema.names == ["label", "features"]


NAN, INF = float("nan"), float("inf")
PROBLEMS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "missing identifier": (
        WIDE | {"person": ["a", None, "b"]},
        {},
        "the table, row 1, column person: the identifier is missing",
    ),
    "identifier that no request can name": (
        WIDE | {"person": ["a", "canary\n", "b"]},
        {},
        "the table, row 1, column person: the identifier must have 1 to 256 characters",
    ),
    "long identifier": (
        WIDE | {"person": ["a", "b", "canary" * 50]},
        {},
        "the table, row 2, column person: the identifier must have 1 to 256 characters",
    ),
    "real identifiers": (
        WIDE | {"person": [1.0, 2.0, 3.0]},
        {},
        "the table, column person: identifiers must be strings or integers, not double",
    ),
    "missing label": (WIDE | {"kind": [1, None, 1]}, {}, "row 1, column kind: the label is missing"),
    "unseen label": (
        WIDE | {"kind": ["a", "b", "c"]},
        {"classes": ["a", "b"]},
        "row 2, column kind: the label is not one of the 2 classes",
    ),
    "label of another type": (
        WIDE | {"kind": [[1], [2], [3]]},
        {},
        "column kind: labels must be numbers or strings, not list",
    ),
    "missing value": (WIDE | {"f_1": [1.0, None, 2.0]}, {}, "row 1, column f_1: the value is missing"),
    "infinite value": (
        WIDE | {"f_1": [1.0, 2.0, INF]},
        {},
        "row 2, column f_1: the value is NaN or infinite",
    ),
    "text among numbers": (WIDE | {"f_1": ["x", "y", "z"]}, {}, "column f_1: features must be numbers"),
    "mixed column": (
        pd.DataFrame(WIDE | {"f_1": pd.Series([1.0, "canary", 2.0], dtype=object)}),
        {},
        "row 1, column f_1: the type is str, but above it is float",
    ),
    "no such column": (WIDE, {"features": "g_*"}, "has no column g_* for the features. Its columns are"),
    "no such label": (WIDE, {"label": "class"}, "the table has no column class for label"),
    "label as feature": (WIDE, {"features": ["f_0", "kind"]}, "the column kind cannot be a feature"),
    "lists of other lengths": (
        LONG | {"features": [[1.0, 2.0], [3.0], [4.0, 5.0]]},
        {"features": "features"},
        "row 1, column features: the list does not have 2 values, as in row 0",
    ),
    "a missing list": (
        pa.table(LONG | {"features": pa.array([[1.0], None, [2.0]])}),
        {"features": "features"},
        "row 1, column features: the list is missing",
    ),
    "NaN in a list": (
        LONG | {"features": [[1.0, 2.0], [3.0, 4.0], [NAN, 5.0]]},
        {"features": "features"},
        "row 2, column features: a value in the list is missing, NaN or infinite",
    ),
    "one wide column alone": (
        pa.table(WIDE | {"one": pa.array([{"a": 1}] * 3)}),
        {"features": "one"},
        "column one: features must be lists of numbers",
    ),
    "too few labels": (np.array(ROWS), {"subject": ["a"] * 3, "label": [0, 1]}, "more rows than label has"),
    "too many labels": (
        np.array(ROWS),
        {"subject": ["a"] * 3, "label": [0, 1, 0, 1]},
        "the table has 3 rows, but label has 4 entries",
    ),
    "images in an array": (
        np.zeros((3, 2, 2)),
        {"subject": ["a"] * 3, "label": [0, 1, 0]},
        "features has 3 dimensions. Flatten every row",
    ),
    "a lazy query": (pl.DataFrame(WIDE).lazy(), {}, "Call .collect() on it first"),
    "no rows": (pa.table(WIDE).slice(0, 0), {}, "the table has no rows"),
    "one class": (WIDE, {"classes": [1]}, "classes must list at least two classes"),
    "a class twice": (WIDE, {"classes": [1, np.int64(1)]}, "classes lists the same class twice"),
    "not a table": (object(), {}, "a object is not a table"),
}


@pytest.mark.parametrize(("source", "options", "message"), PROBLEMS.values(), ids=list(PROBLEMS))
def test_a_bad_table_is_refused_with_its_row_and_column(
    source: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadTable) as caught:
        write_parquet(source, tmp_path / "p.parquet", **(COLUMNS | {"features": "f_*"} | options))
    assert message in str(caught.value)
    assert "canary" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


CSV_PROBLEMS = {
    "text among numbers": ("a,0,1\nb,1,canary\n", "people.csv, row 1, column f_0: the value is not a number"),
    "numbers that only Python reads": ("a,0,1_000\nb,1,canary\n", "row 1, column f_0: the value is not"),
    "an empty value": ("a,0,1\nb,1,\n", "people.csv, row 1, column f_0: the value is missing"),
    "NaN": ("a,0,1\nb,1,nan\n", "people.csv, row 1, column f_0: the value is NaN or infinite"),
    "no identifier": (",0,1\n", "people.csv, row 0, column person: the identifier is missing"),
    "a short line": ("a,0,1\nb,canary\n", "people.csv, row 1: it has 2 values, but there are 3 columns"),
    "only a header": ("", "people.csv has no rows"),
}


@pytest.mark.parametrize(("lines", "message"), CSV_PROBLEMS.values(), ids=list(CSV_PROBLEMS))
def test_a_bad_csv_file_is_refused_with_its_row_and_column(lines: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(f"person,kind,f_0\n{lines}")
    with pytest.raises(BadTable) as caught:
        write_parquet(path, tmp_path / "p.parquet", **COLUMNS, features="f_*")
    assert message in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("people.csv", b"", "people.csv is empty"),
        ("people.csv", b"a,a\n1,2\n", "people.csv has two columns named a"),
        ("people.csv", b"\xff\xfe\x00", "people.csv is not a CSV file in UTF-8"),
        ("people.parquet", b"not Parquet", "people.parquet is not a Parquet file"),
        ("people.xlsx", b"", "people.xlsx is neither a .csv nor a .parquet file"),
    ],
)
def test_a_file_of_another_kind_is_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadTable, match=message.replace(".", r"\.")):
        write_parquet(tmp_path / name, tmp_path / "p.parquet", **COLUMNS)
    with pytest.raises(BadTable, match="there is no file"):
        write_parquet(tmp_path / "none.csv", tmp_path / "p.parquet", **COLUMNS)


def test_a_bad_row_leaves_the_earlier_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "p.parquet"
    write_parquet(LONG, target, **COLUMNS)
    with pytest.raises(BadTable):
        write_parquet(LONG | {"kind": [1, None, 0]}, target, **COLUMNS)
    _assert_canonical(target)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lethe.integrations.errors.find_spec", lambda _: None)
    with pytest.raises(MissingLibrary, match=r"needs pyarrow and numpy\. To install, run: pip install"):
        write_parquet(LONG, tmp_path / "p.parquet", **COLUMNS)
