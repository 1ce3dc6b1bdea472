"""Tables: turns rows from other libraries into the Parquet file that the service reads.

The file has the columns `subject_id` (string), `label` (an integer, or a float for real targets) and one of
`features` (a fixed-size list of floats), `image` (binary) and `text` (string). Rows come from pandas, polars,
Arrow, NumPy, a mapping of columns, or a CSV or Parquet file.

Files are read and written in batches, so they may be larger than the memory. Rows in messages are counted
from 0. Messages never contain a value of the table.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lethe.identifiers import PATTERN, RULE
from lethe.integrations.errors import BadTable, require_libraries
from lethe.integrations.table_sources import Source, flatten_dictionary, open_source, to_array

FEATURES, IMAGE, TEXT = "features", "image", "text"
MOST_CLASSES = 100_000
_PURPOSE = "Writing Parquet"

Classes = tuple[Hashable, ...]


@dataclass(frozen=True)
class WrittenTable:
    """A file that `write_parquet` wrote.

    `column` is the column of the rows: `features`, `image` or `text`. `width` is the number of features, or
    None for images and texts. `feature_names` are the source's columns in the order of the features, or empty
    if they came from one list column. `classes` are the labels 0, 1, … of the file in this order, or None if
    labels were numbers and kept as they are.
    """

    path: Path
    rows: int
    column: str
    width: int | None
    feature_names: tuple[str, ...]
    classes: Classes | None


def write_parquet(
    source: Any,
    to: Path | str,
    *,
    subject: Any,
    label: Any,
    features: str | Sequence[str] = FEATURES,
    classes: Sequence[Hashable] | None = None,
) -> WrittenTable:
    """Write a table as the Parquet file that `upload_part` and `lethe model register --data` take.

    `source` is a pandas or polars DataFrame, an Arrow table, a two-dimensional NumPy array, a mapping from
    names to columns, or the path of a `.csv` or `.parquet` file.

    `subject` and `label` are names of columns, or sequences with one entry per row. Identifiers must be
    strings or integers; an integer becomes its decimal digits, and erasure requests must name it like that.
    A holdout may go without identifiers: pass `subject=None`.

    `features` is the name of one column, or several names or patterns such as `f_*`, which select numeric
    columns in the order of the table. One column may hold lists of numbers, all of one length, or images
    (binary) or texts (strings). In a CSV file, one column that is named alone holds texts, so pass `["age"]`
    for a single number. `features` is ignored for a NumPy array.

    With `classes`, labels are looked up in this list, and the file contains their positions. Without it,
    numbers stay as they are, and the classes of string labels are the sorted distinct labels. They are
    returned: pass them when you write the holdout, or another part, of the same model.

    Raise `BadTable` with the row and the column of the first problem. Then no file is written.
    """
    require_libraries(_PURPOSE, "pyarrow", "numpy")
    opened = open_source(source)
    plan = _Plan.make(opened, subject, label, features, classes)
    target = Path(to)
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        written = plan.write(unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return WrittenTable(target, *written, plan.feature_names, plan.classes)


@dataclass(frozen=True)
class _Plan:
    """Which columns become what. `subject` and `label` are names, or Arrow arrays of the whole column."""

    source: Source
    subject: Any
    label: Any
    columns: tuple[str, ...]
    is_list: bool
    classes: Classes | None
    real_labels: bool

    @classmethod
    def make(
        cls,
        source: Source,
        subject: Any,
        label: Any,
        features: str | Sequence[str],
        classes: Sequence[Hashable] | None,
    ) -> "_Plan":
        subject_column = None if subject is None else _column(source, subject, "subject")
        label_column = _column(source, label, "label")
        named = {name for name in (subject_column, label_column) if isinstance(name, str)}
        columns, is_list = _select(source, features, named)
        chosen, real = _checked_classes(classes), False
        if chosen is None:
            chosen, real = _read_labels(source, label_column)
        return cls(source, subject_column, label_column, columns, is_list, chosen, real)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return () if self.is_list else self.columns

    @property
    def _labels_are_text(self) -> bool:
        """Whether the labels come from a CSV file. A sequence has types of its own."""
        return self.source.is_text and isinstance(self.label, str)

    def write(self, to: Path) -> tuple[int, str, int | None]:
        """Write all rows. Return their number, the name of their column, and the number of features."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        writer, row, width = None, 0, None
        try:
            for batch in self.source.batches(self._named()):
                if batch.num_rows == 0:
                    continue
                subjects = None if self.subject is None else self._subjects(batch, row)
                labels = self._labels(batch, row)
                column, rows, width = self._rows(batch, row, width)
                arrays = {"subject_id": subjects, "label": labels, column: rows}
                table = pa.table({name: array for name, array in arrays.items() if array is not None})
                writer = writer or pq.ParquetWriter(to, table.schema, compression="zstd")
                writer.write_table(table)
                row += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        if writer is None or row == 0:
            raise BadTable(f"{self.source.place} has no rows")
        self._check_length(row)
        return row, column, width

    def _named(self) -> list[str]:
        extra = [name for name in (self.subject, self.label) if isinstance(name, str)]
        return [*dict.fromkeys([*extra, *self.columns])]

    def _check_length(self, rows: int) -> None:
        for name, column in (("subject", self.subject), ("label", self.label)):
            if column is not None and not isinstance(column, str) and len(column) != rows:
                raise BadTable(
                    f"{self.source.place} has {rows} {'row' if rows == 1 else 'rows'}, but {name} has "
                    f"{len(column)} {'entry' if len(column) == 1 else 'entries'}"
                )

    def _entries(self, column: Any, batch: Any, row: int, name: str) -> tuple[Any, str]:
        """Return the entries of this batch, from a column of the table or a sequence of its own."""
        if isinstance(column, str):
            return flatten_dictionary(batch.column(column)), column
        if row + batch.num_rows > len(column):
            raise BadTable(f"{self.source.place} has more rows than {name} has entries ({len(column)})")
        return flatten_dictionary(column.slice(row, batch.num_rows)), name

    def _subjects(self, batch: Any, row: int) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        entries, name = self._entries(self.subject, batch, row, "subject")
        if not (_is_string(entries.type) or pa.types.is_integer(entries.type)):
            raise BadTable(
                f"{self.source.place}, column {name}: identifiers must be strings or integers, not "
                f"{entries.type}. Convert the column first"
            )
        texts = entries.cast(pa.string())
        self._refuse(pc.fill_null(pc.equal(texts, ""), True), name, row, "the identifier is missing")
        unusable = pc.invert(pc.match_substring_regex(texts, PATTERN))
        self._refuse(unusable, name, row, f"the identifier {RULE}")
        return texts

    def _labels(self, batch: Any, row: int) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        entries, name = self._entries(self.label, batch, row, "label")
        if self._labels_are_text and self.classes is None:
            entries = self._numbers(entries, name, row)
        self._refuse(entries.is_null(), name, row, "the label is missing")
        if self.classes is not None:
            return self._positions(entries, name, row)
        if pa.types.is_integer(entries.type) and not self.real_labels:
            return entries.cast(pa.int64())
        if _is_number(entries.type):
            numbers = entries.cast(pa.float64(), safe=False)
            self._refuse(pc.invert(pc.is_finite(numbers)), name, row, "the label is NaN or infinite")
            return numbers
        raise BadTable(
            f"{self.source.place}, column {name}: labels must be numbers or strings, not {entries.type}. "
            "Convert the column, or pass the list of classes"
        )

    def _positions(self, entries: Any, name: str, row: int) -> Any:
        """Return the positions of the labels in the class list."""
        import pyarrow as pa

        assert self.classes is not None
        if self._labels_are_text and any(not isinstance(known, str) for known in self.classes):
            entries = self._numbers(entries, name, row)
        places = {known: place for place, known in enumerate(self.classes)}
        found = [places.get(_label_key(entry)) for entry in entries.to_pylist()]
        positions = pa.array(found, pa.int64())
        known = f"the label is not one of the {len(places)} classes. Add it to the classes, or fix the row"
        self._refuse(positions.is_null(), name, row, known)
        return positions

    def _rows(self, batch: Any, row: int, width: int | None) -> tuple[str, Any, int | None]:
        """Return the name of the column, its values, and the number of features."""
        import pyarrow as pa

        if not self.is_list:
            arrays = [self._feature(batch.column(name), name, row) for name in self.columns]
            return FEATURES, _stack(arrays), len(arrays)
        name = self.columns[0]
        entries = flatten_dictionary(batch.column(name))
        if _is_binary(entries.type):
            self._refuse(entries.is_null(), name, row, "the image is missing")
            return IMAGE, entries.cast(pa.large_binary()), None
        if _is_string(entries.type):
            self._refuse(entries.is_null(), name, row, "the text is missing")
            return TEXT, entries.cast(pa.large_string()), None
        return FEATURES, *self._lists(entries, name, row, width)

    def _feature(self, entries: Any, name: str, row: int) -> Any:
        """Return one wide column as floats without missing or infinite values."""
        import pyarrow as pa
        import pyarrow.compute as pc

        entries = flatten_dictionary(entries)
        if self.source.is_text:
            entries = self._numbers(entries, name, row)
        self._refuse(entries.is_null(), name, row, "the value is missing. Fill it in, or leave the row out")
        kind = entries.type
        if not (_is_number(kind) or pa.types.is_boolean(kind)):
            raise BadTable(
                f"{self.source.place}, column {name}: features must be numbers, not {kind}. Convert the "
                "column, or leave it out of the features"
            )
        single = kind in (pa.float16(), pa.float32())
        numbers = entries.cast(pa.float32() if single else pa.float64(), safe=False)
        self._refuse(pc.invert(pc.is_finite(numbers)), name, row, "the value is NaN or infinite")
        return numbers

    def _lists(self, entries: Any, name: str, row: int, width: int | None) -> tuple[Any, int]:
        """Return a list column as a fixed-size list of floats, and the number of features."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = entries.type
        if not _is_list(kind) or not _is_number(kind.value_type):
            raise BadTable(
                f"{self.source.place}, column {name}: features must be lists of numbers, not {kind}. For one "
                "column per feature, name them all or use a pattern such as f_*"
            )
        self._refuse(entries.is_null(), name, row, "the list is missing")
        lengths = pc.list_value_length(entries)
        width = int(lengths[0].as_py()) if width is None and len(lengths) else width
        if width == 0:
            raise BadTable(f"{self.source.place}, row 0, column {name}: the list is empty")
        other = f"the list does not have {width} values, as in row 0"
        self._refuse(pc.not_equal(lengths, width), name, row, other)
        flat = entries.flatten()
        single = kind.value_type in (pa.float16(), pa.float32())
        numbers = flat.cast(pa.float32() if single else pa.float64(), safe=False)
        finite = pc.fill_null(pc.is_finite(numbers), False).to_numpy(zero_copy_only=False)
        bad = ~finite.reshape(-1, width or 1).all(1)
        self._refuse(pa.array(bad), name, row, "a value in the list is missing, NaN or infinite")
        return pa.FixedSizeListArray.from_arrays(numbers, width), width or 0

    def _numbers(self, texts: Any, name: str, row: int) -> Any:
        """Read numbers from the text of a CSV file: integers if all are, else floats."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = pc.utf8_trim_whitespace(texts)
        for kind in (pa.int64(), pa.float64()):
            try:
                return texts.cast(kind)
            except pa.ArrowInvalid:
                continue
        plain = texts.to_pylist()
        bad = pa.array([not _reads_as_number(text) for text in plain])
        self._refuse(bad, name, row, "the value is not a number")
        return pa.array([None if text is None else float(text) for text in plain], pa.float64())

    def _refuse(self, bad: Any, name: str, first: int, problem: str) -> None:
        """Raise `BadTable` with the first row that is bad."""
        import pyarrow.compute as pc

        place = pc.index(bad, True).as_py()
        if place >= 0:
            raise BadTable(f"{self.source.place}, row {first + place}, column {name}: {problem}")


def _column(source: Source, column: Any, role: str) -> Any:
    """Return the name of a column after checking that it exists, or a sequence as an Arrow array."""
    if not isinstance(column, str):
        return to_array(column, role)
    if column not in source.names:
        raise BadTable(f"{source.place} has no column {column} for {role}. {_listing(source)}")
    return column


def _select(source: Source, features: str | Sequence[str], taken: set[str]) -> tuple[tuple[str, ...], bool]:
    """Return the columns of the features, and whether they are one column that holds whole rows."""
    if source.is_matrix:
        return (FEATURES,), True
    patterns = [features] if isinstance(features, str) else list(features)
    columns: dict[str, None] = {}
    for pattern in patterns:
        exact = [pattern] if pattern in source.names else []
        matches = exact or [name for name in source.names if name not in taken and fnmatchcase(name, pattern)]
        if not matches:
            raise BadTable(f"{source.place} has no column {pattern} for the features. {_listing(source)}")
        columns |= dict.fromkeys(matches)
    if shared := taken & set(columns):
        raise BadTable(f"the column {min(shared)} cannot be a feature and the subject or label at once")
    single = isinstance(features, str) and features in source.names and source.holds_rows(features)
    return tuple(columns), single


def _listing(source: Source) -> str:
    names = source.names[:20]
    more = f" and {len(source.names) - 20} more" if len(source.names) > 20 else ""
    return f"Its columns are {', '.join(names)}{more}."


def _checked_classes(classes: Sequence[Hashable] | None) -> Classes | None:
    if classes is None:
        return None
    keys = tuple(_label_key(entry) for entry in classes)
    if len(keys) < 2:
        raise BadTable("classes must list at least two classes")
    if len(set(keys)) != len(keys):
        raise BadTable("classes lists the same class twice")
    return keys


def _read_labels(source: Source, label: Any) -> tuple[Classes | None, bool]:
    """Return the classes of labels that are strings or Booleans, and whether the labels are real numbers.

    In a CSV file every label is a string, so they count as numbers if all of them can be read as such.
    """
    import pyarrow as pa

    text = source.is_text and isinstance(label, str)
    distinct: set[Hashable] = set()
    numeric = whole = text
    arrays = (batch.column(0) for batch in source.batches([label])) if isinstance(label, str) else [label]
    for array in map(flatten_dictionary, arrays):
        if not (_is_string(array.type) or pa.types.is_boolean(array.type)):
            return None, not pa.types.is_integer(array.type)
        entries = [entry for entry in array.unique().to_pylist() if entry is not None]
        numeric = numeric and all(map(_reads_as_number, entries))
        whole = whole and all(entry.strip().lstrip("+-").isdecimal() for entry in entries)
        distinct.update(entries)
        if len(distinct) > MOST_CLASSES and not numeric:
            raise BadTable(f"{source.place} has more than {MOST_CLASSES:,} distinct labels")
    if numeric:
        return None, not whole
    return tuple(sorted(distinct)) or None, False  # type: ignore[type-var]


def _label_key(entry: Any) -> Hashable:
    """Return a label as plain Python, so that 1, numpy.int64(1) and 1.0 are one class."""
    value = entry.item() if hasattr(entry, "item") else entry
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _stack(arrays: list[Any]) -> Any:
    """Return columns of floats as one fixed-size list column."""
    import numpy as np
    import pyarrow as pa

    matrix = np.column_stack([array.to_numpy(zero_copy_only=False) for array in arrays])
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), len(arrays))


def _reads_as_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return text is None
    return True


def _is_string(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def split_holdout(holdout: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return rows, labels and subjects of a holdout. The subjects are None if it names none."""
    if len(holdout) not in (2, 3):
        raise BadTable("holdout: pass a tuple of rows and labels, or of rows, labels and subjects")
    rows, labels, *subjects = holdout
    return rows, labels, subjects[0] if subjects else None


def as_array(values: Any) -> Any:
    """Return a PyTorch tensor, or whatever NumPy accepts, as a NumPy array."""
    import numpy as np

    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
