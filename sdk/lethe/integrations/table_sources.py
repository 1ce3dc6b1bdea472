"""Sources of rows: DataFrames, Arrow tables, arrays, mappings, and CSV and Parquet files, read in batches.

pandas and polars are never imported. A DataFrame is recognised by what it can do.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lethe.integrations.errors import BadTable

BATCH_ROWS = 8192
_MATRIX = "features"


class Source(Protocol):
    """Rows with named columns."""

    @property
    def place(self) -> str:
        """What messages call the source."""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""

    @property
    def is_text(self) -> bool:
        """Whether every value is text, as in a CSV file."""

    @property
    def is_matrix(self) -> bool:
        """Whether the source is one array of features, without names."""

    def holds_rows(self, name: str) -> bool:
        """Return whether one value of this column is a whole row: a list, an image or a text."""

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield these columns as Arrow record batches."""


def open_source(source: Any) -> Source:
    """Return the rows of anything that `write_parquet` accepts."""
    import pyarrow as pa

    if isinstance(source, str | Path):
        return _open_file(Path(source))
    if isinstance(source, pa.Table):
        return ArrowSource(source)
    if _is_pandas(source):
        return PandasSource(source)
    if isinstance(source, Mapping):
        return ArrowSource(_from_mapping(source))
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):
        raise BadTable("the table is a query that has not run yet. Call .collect() on it first")
    if hasattr(source, "to_arrow"):
        return open_source(source.to_arrow())
    if hasattr(source, "__arrow_c_stream__"):
        return ArrowSource(pa.table(source))
    if hasattr(source, "__array__") or isinstance(source, list | tuple):
        return ArrowSource(pa.table({_MATRIX: to_array(source, _MATRIX)}), is_matrix=True)
    raise BadTable(
        f"a {type(source).__name__} is not a table. Pass a DataFrame, an Arrow table, a NumPy array, a "
        "mapping of columns, or the path of a .csv or .parquet file"
    )


def to_array(values: Any, name: str) -> Any:
    """Return a sequence as an Arrow array. A two-dimensional array becomes a list for each row."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return flatten_dictionary(values)
    if hasattr(values, "to_arrow"):
        return flatten_dictionary(values.to_arrow())
    array = values if isinstance(values, np.ndarray) else None
    if array is None and hasattr(values, "__array__") and not _is_pandas(values):
        array = np.asarray(values)
    if array is not None and array.ndim > 2:
        raise BadTable(f"{name} has {array.ndim} dimensions. Flatten every row to a vector first")
    if array is not None and array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(
            pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1]
        )
    try:
        return flatten_dictionary(pa.array(values, from_pandas=True))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError):
        raise BadTable(_mixed_column(values, name)) from None


def flatten_dictionary(array: Any) -> Any:
    """Return one contiguous array without dictionary encoding, chunks or string views."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # some versions return a single chunk
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    return array


@dataclass(frozen=True)
class ArrowSource:
    """A table in memory."""

    table: Any
    is_matrix: bool = False
    place: str = "the table"
    is_text: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    def holds_rows(self, name: str) -> bool:
        """Return whether one value of this column is a whole row."""
        return _holds_rows(self.table.schema.field(name).type)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield these columns."""
        yield from self.table.select(columns).to_batches(max_chunksize=BATCH_ROWS)


@dataclass(frozen=True)
class PandasSource:
    """A pandas DataFrame. Only the columns that are used are converted."""

    frame: Any
    is_matrix: bool = False
    place: str = "the table"
    is_text: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [str(name) for name in self.frame.columns]

    def _array(self, name: str) -> Any:
        return to_array(self.frame.iloc[:, self.names.index(name)], f"column {name}")

    def holds_rows(self, name: str) -> bool:
        """Return whether one value of this column is a whole row."""
        return _holds_rows(self._array(name).type)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield these columns."""
        import pyarrow as pa

        table = pa.table({name: self._array(name) for name in columns})
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


@dataclass(frozen=True)
class ParquetSource:
    """A Parquet file."""

    path: Path
    schema: Any
    is_matrix: bool = False
    is_text: bool = False

    @classmethod
    def open(cls, path: Path) -> "ParquetSource":
        """Read the columns of the file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return cls(path, pq.read_schema(path))
        except pa.ArrowInvalid:
            raise BadTable(f"{path.name} is not a Parquet file") from None

    @property
    def place(self) -> str:
        """The name of the file."""
        return self.path.name

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def holds_rows(self, name: str) -> bool:
        """Return whether one value of this column is a whole row."""
        return _holds_rows(self.schema.field(name).type)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield these columns."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                yield from file.iter_batches(BATCH_ROWS, columns=columns)
        except (pa.ArrowInvalid, OSError):
            raise BadTable(f"{self.place} is damaged: its rows cannot be read") from None


@dataclass(frozen=True)
class CsvSource:
    """A CSV file with a header. Every value is read as text and converted where it is used."""

    path: Path
    names: list[str]
    is_matrix: bool = False
    is_text: bool = True

    @classmethod
    def open(cls, path: Path) -> "CsvSource":
        """Read the header of the file."""
        import csv

        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                names = next(csv.reader(file), [])
        except (UnicodeDecodeError, csv.Error):
            raise BadTable(f"{path.name} is not a CSV file in UTF-8") from None
        if not names:
            raise BadTable(f"{path.name} is empty. A CSV file starts with a line that names its columns")
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadTable(f"{path.name} has two columns named {twice[0]}")
        return cls(path, names)

    @property
    def place(self) -> str:
        """The name of the file."""
        return self.path.name

    def holds_rows(self, name: str) -> bool:  # noqa: ARG002
        """Return True: a column that is named alone, without a pattern, holds texts."""
        return True

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield these columns as text. An empty value is missing."""
        import pyarrow as pa
        from pyarrow import csv

        ragged: list[Any] = []

        def remember(row: Any) -> str:
            ragged.append(row)
            return "error"

        try:
            yield from csv.open_csv(
                self.path,
                csv.ReadOptions(use_threads=False),  # without threads, Arrow counts the rows
                csv.ParseOptions(newlines_in_values=True, invalid_row_handler=remember),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(self.names, pa.string()),
                    include_columns=columns,
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            raise BadTable(_csv_problem(self.place, ragged)) from None


def _csv_problem(place: str, ragged: Sequence[Any]) -> str:
    """Describe what Arrow could not parse, without the content of the line."""
    if not ragged:
        return f"{place} cannot be read as CSV in UTF-8"
    row, header = ragged[0], 2  # the header is row 1
    return (
        f"{place}, row {row.number - header}: it has {row.actual_columns} values, but there are "
        f"{row.expected_columns} columns"
    )


def _open_file(path: Path) -> Source:
    kinds: dict[str, Any] = {
        ".csv": CsvSource.open,
        ".parquet": ParquetSource.open,
        ".pq": ParquetSource.open,
    }
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise BadTable(f"{path.name} is neither a .csv nor a .parquet file")
    if not path.is_file():
        raise BadTable(f"there is no file {path}")
    opened: Source = kind(path)
    return opened


def _from_mapping(columns: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    arrays = {str(name): to_array(values, f"column {name}") for name, values in columns.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise BadTable(f"the columns have different numbers of rows: {lengths}")
    return pa.table(arrays)


def _is_pandas(value: Any) -> bool:
    """Return whether this is a pandas DataFrame or Series, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series)


def _holds_rows(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    return not any(check(kind) for check in numeric)


def _mixed_column(values: Sequence[Any], name: str) -> str:
    """Say which row of a column has another type than the first."""
    kind: type | None = None
    for row, value in enumerate(values):
        if value is None or value != value:  # NaN is missing too
            continue
        kind = kind or type(value)
        if type(value) is not kind:
            return (
                f"the table, row {row}, {name}: the type is {type(value).__name__}, but above it is "
                f"{kind.__name__}. Convert the column to one type"
            )
    return f"the table, {name}: values of this type cannot be stored. Convert the column first"
