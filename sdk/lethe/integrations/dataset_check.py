"""Checks of the files of a model before they are uploaded.

The rules are those of registration. Problems name the file, the row (counted from 0) and the column, never
what a row contains.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lethe.certificate.errors import UnusableInput
from lethe.identifiers import PATTERN, RULE
from lethe.manifest import NETWORK_FAMILIES, Manifest

SUBJECT, LABEL, FEATURES, IMAGE, TEXT = "subject_id", "label", "features", "image", "text"
NEEDS_PYARROW = (
    "checking Parquet files needs the package pyarrow. To install it, run `pip install pyarrow`, or leave "
    "out --data and --holdout to check the manifest alone"
)
_BATCH_ROWS = 8192
_MOST_HEADER = 100_000_000


@dataclass(frozen=True)
class ExpectedRows:
    """What a manifest says about rows: the column that holds them, their width, and the classes.

    `classes` is None for real targets, and 0 if the family is a plug-in whose labels are not known here.
    """

    column: str
    width: int | None
    classes: int | None

    @classmethod
    def of(cls, manifest: Manifest) -> "ExpectedRows":
        """Return what the manifest says."""
        columns = {"image": IMAGE, "text": TEXT}
        column, width = FEATURES, manifest.width
        if manifest.representation is not None:
            raw = manifest.representation.input
            column = columns.get(raw.kind, FEATURES)
            width = getattr(raw, "width", 0)
        known = {"softmax": manifest.classes, "logistic": 2, "ridge": None}
        known |= dict.fromkeys(NETWORK_FAMILIES, manifest.classes)
        return cls(column, width if column == FEATURES else None, known.get(manifest.family, 0))


@dataclass
class CheckedFile:
    """The rows of one file and its problems."""

    rows: int = 0
    problems: list[str] = field(default_factory=list)
    _first_rows: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, kind: str, rows: Sequence[int]) -> None:
        """Count rows that have a problem."""
        if rows:
            first, count = self._first_rows.get(kind, (rows[0], 0))
            self._first_rows[kind] = (first, count + len(rows))

    def finish(self) -> None:
        """Turn the counted rows into one line per kind of problem."""
        for kind, (first, count) in self._first_rows.items():
            others = f" ({count} rows in total)" if count > 1 else ""
            self.problems.append(f"row {first}, {kind}{others}")


def check_rows(path: Path, expected: ExpectedRows, *, holdout: bool = False) -> CheckedFile:
    """Check a Parquet file against what the manifest says. Raises `UnusableInput` without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise UnusableInput(NEEDS_PYARROW) from None
    result = CheckedFile()
    try:
        with pq.ParquetFile(path) as source:
            schema = source.schema_arrow
            result.problems += _schema_problems(schema, expected, holdout=holdout)
            if result.problems:
                result.rows = source.metadata.num_rows
                return result
            columns = [name for name in (SUBJECT, LABEL, expected.column) if name in schema.names]
            for batch in source.iter_batches(_BATCH_ROWS, columns=columns):
                _check_batch(batch, expected, result)
                result.rows += batch.num_rows
    except (pa.ArrowException, OSError, ValueError):
        result.problems.append("it is not a Parquet file, or it is damaged")
    result.finish()
    if not result.rows and not result.problems:
        result.problems.append("it has no rows")
    return result


def _schema_problems(schema: Any, expected: ExpectedRows, *, holdout: bool) -> Iterator[str]:
    import pyarrow as pa

    for name in (SUBJECT, LABEL, expected.column):
        if name not in schema.names:
            if not (holdout and name == SUBJECT):
                yield f"the column {name} is missing"
            continue
        kind = schema.field(name).type
        if name == SUBJECT and not _is_string(kind):
            yield f"the column {name} must hold strings, not {kind}"
        if name == LABEL:
            real = expected.classes is None or expected.classes == 0
            if not (pa.types.is_integer(kind) or (real and pa.types.is_floating(kind))):
                yield f"the column {name} must hold {'numbers' if real else 'whole numbers'}, not {kind}"
        if name == expected.column:
            yield from _rows_problems(name, kind, expected.width)


def _rows_problems(name: str, kind: Any, width: int | None) -> Iterator[str]:
    import pyarrow as pa

    if name == IMAGE:
        binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
        if not any(check(kind) for check in binary):
            yield f"the column {name} must hold the bytes of images, not {kind}"
    elif name == TEXT:
        if not _is_string(kind):
            yield f"the column {name} must hold strings, not {kind}"
    elif not _is_list(kind) or not pa.types.is_floating(kind.value_type):
        yield f"the column {name} must hold lists of floats, not {kind}"
    elif pa.types.is_fixed_size_list(kind) and kind.list_size != width:
        yield f"the column {name} has {kind.list_size} values per row, but the manifest says {width}"


def _is_string(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _check_batch(batch: Any, expected: ExpectedRows, result: CheckedFile) -> None:
    """Note the rows of one batch that registration would reject."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def note(kind: str, flags: Any) -> None:
        places = pc.indices_nonzero(flags.fill_null(False)).to_pylist()
        result.note(kind, [result.rows + place for place in places])

    if SUBJECT in batch.schema.names:
        subjects = batch.column(SUBJECT)
        note(f"column {SUBJECT}: the value is missing", subjects.is_null())
        note(f"column {SUBJECT}: the value {RULE}", pc.invert(pc.match_substring_regex(subjects, PATTERN)))
    labels = batch.column(LABEL)
    note(f"column {LABEL}: the value is missing", labels.is_null())
    if pa.types.is_floating(labels.type):
        note(f"column {LABEL}: the value is NaN or infinite", pc.invert(pc.is_finite(labels)))
    elif expected.classes:
        outside = pc.or_(pc.less(labels, 0), pc.greater_equal(labels, expected.classes))
        note(f"column {LABEL}: the value is not in 0 … {expected.classes - 1}", outside)
    column = batch.column(expected.column)
    note(f"column {expected.column}: the value is missing", column.is_null())
    if expected.column == FEATURES:
        if not pa.types.is_fixed_size_list(column.type):
            wrong = pc.not_equal(pc.list_value_length(column), expected.width)
            note(f"column {FEATURES}: the row does not have {expected.width} values", wrong)
        bad_rows = _rows_with_bad_values(column)
        result.note(
            f"column {FEATURES}: a value is missing, NaN or infinite", [result.rows + r for r in bad_rows]
        )


def _rows_with_bad_values(column: Any) -> list[int]:
    """Return the rows of a list column that contain a value which is not a finite number."""
    import pyarrow.compute as pc

    values = pc.list_flatten(column)
    bad = pc.invert(pc.is_finite(values).fill_null(False))
    rows = pc.list_parent_indices(column).filter(bad)
    return sorted(set(rows.to_pylist()))


def weights_problems(path: Path, manifest: Manifest) -> list[str]:
    """Return how a safetensors file differs from the weights that the manifest describes.

    For a network, only the format is checked, because its tensors are known to the worker alone.
    """
    header = _read_header(path)
    if header is None:
        return ["it is not a safetensors file"]
    if manifest.family not in ("softmax", "logistic", "ridge"):
        return []
    outputs = manifest.classes or 1
    expected = {"weight": [outputs, manifest.width]} | ({"bias": [outputs]} if manifest.bias else {})
    problems = [f"the tensor {name} is missing" for name in expected if name not in header]
    surplus = header.keys() - expected.keys()
    if surplus:
        problems.append(f"it has tensors besides {' and '.join(expected)}")
    for name, shape in expected.items():
        actual = header.get(name, {}).get("shape", shape)
        if actual != shape:
            problems.append(f"the tensor {name} has the shape {_shape(actual)}, not {_shape(shape)}")
    return problems


def _shape(sides: Sequence[int]) -> str:
    return " × ".join(str(side) for side in sides)


def _read_header(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if 2 <= length <= _MOST_HEADER else b""
    try:
        header = json.loads(text)
    except ValueError:
        return None
    if not isinstance(header, dict):
        return None
    return {
        name: entry for name, entry in header.items() if name != "__metadata__" and isinstance(entry, dict)
    }
