"""Datasets: Parquet parts with `subject_id`, `label` and `features`, streamed, never all in memory."""

import hashlib
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.storage import CHUNK, Storage, StorageError, Stored
from worker.loading import identifiers

SUBJECT, LABEL, FEATURES = "subject_id", "label", "features"
BATCH_ROWS, BATCH_BYTES = 8192, 64 << 20  # whichever is less: a row can be wide


class DatasetError(Exception):
    """The data does not fit the manifest; the message says where and how, never what a row holds."""


# How the reading of a file that is no fit Parquet file can end; Arrow says OSError to a broken footer.
FAULTS = (pa.ArrowException, DatasetError, KeyError, OSError, ValueError)


@dataclass(frozen=True)
class MemoryMapped:
    """Rows as the engine reads them: raw files in a scratch folder, mapped, not loaded."""

    features: npt.NDArray[np.floating]
    labels: npt.NDArray[np.float64]


def schema_problems(
    storage: Storage, path: str, *, width: int, real_labels: bool, needs_subject: bool = True
) -> list[str]:
    """Every way in which the part's columns are not those of the manifest."""
    with storage.open(path) as file:
        try:
            schema = pq.ParquetFile(file).schema_arrow
        except (pa.ArrowException, OSError):
            return ["not a Parquet file"]
    missing = [
        f"the column {column} is missing"
        for column in (SUBJECT, LABEL, FEATURES)
        if column not in schema.names and (needs_subject or column != SUBJECT)
    ]
    kinds = {name: schema.field(name).type for name in {SUBJECT, LABEL, FEATURES} & set(schema.names)}
    found = [
        _subject_problem(kinds[SUBJECT]) if SUBJECT in kinds else None,
        _label_problem(kinds[LABEL], real_labels) if LABEL in kinds else None,
        _features_problem(kinds[FEATURES], width) if FEATURES in kinds else None,
    ]
    return missing + [problem for problem in found if problem is not None]


def _subject_problem(kind: pa.DataType) -> str | None:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return None
    return f"{SUBJECT} must be a string column, not {kind}"


def _label_problem(kind: pa.DataType, real_labels: bool) -> str | None:
    if pa.types.is_integer(kind) or (real_labels and pa.types.is_floating(kind)):
        return None
    return f"{LABEL} must be {'a number' if real_labels else 'an integer'}, not {kind}"


def _features_problem(kind: pa.DataType, width: int) -> str | None:
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_floating(kind.value_type):
        return f"{FEATURES} must be a fixed-size list of floats, not {kind}"
    if kind.list_size != width:
        return f"{FEATURES} has {kind.list_size} values a row, the manifest says {width}"
    return None


def has_subjects(storage: Storage, path: str) -> bool:
    """A holdout part may name nobody."""
    with storage.open(path) as file:
        return SUBJECT in pq.ParquetFile(file).schema_arrow.names


def row_count(storage: Storage, path: str) -> int:
    with storage.open(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def batches(storage: Storage, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with storage.open(path) as file:
        yield from _batches(pq.ParquetFile(file), columns)


def _batches(
    source: pq.ParquetFile, columns: Sequence[str], groups: list[int] | None = None
) -> Iterator[pa.RecordBatch]:
    kind = source.schema_arrow.field(FEATURES).type if FEATURES in columns else None
    wide = kind.list_size if kind is not None and pa.types.is_fixed_size_list(kind) else 1
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes(wide)))
    yield from source.iter_batches(rows, row_groups=groups, columns=list(columns))


def row_bytes(width: int) -> int:
    """Of one row with its label, laid out in float64."""
    return 8 * (width + 1)


def check_bytes(storage: Storage, path: str, sha256: str) -> None:
    """Raise when the file is not the one that was recorded: a certificate commits to what it says."""
    digest = hashlib.sha256()
    for chunk in storage.read(path):
        digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise StorageError(f"not the file that was stored: {path}")


def holders(storage: Storage, path: str, subjects: Collection[str]) -> set[str]:
    """Return which of `subjects` have rows in this part, in whatever Unicode form; reads one column only."""
    if not has_subjects(storage, path):
        return set()
    given = sorted(subjects)
    wanted = identifiers.normalised(pa.array(given, pa.string()))
    found: set[str] = set()
    for batch in batches(storage, path, [SUBJECT]):
        column = identifiers.normalised(batch.column(SUBJECT))
        found.update(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())
    return {name for name, form in zip(given, wanted.to_pylist(), strict=True) if form in found}


def near_matches(storage: Storage, path: str, folds: Collection[str]) -> dict[str, set[str]]:
    """Return the identifiers in this part, in normal form C, that have one of these folded forms, by it."""
    found: dict[str, set[str]] = {}
    if not has_subjects(storage, path):
        return found
    for batch in batches(storage, path, [SUBJECT]):
        for subject in pc.unique(identifiers.normalised(batch.column(SUBJECT)).drop_null()).to_pylist():
            if (fold := identifiers.folded(subject)) in folds:
                found.setdefault(fold, set()).add(subject)
    return found


def subjects(storage: Storage, path: str) -> Iterator[str]:
    """Everyone in this part; the same one may come more than once."""
    for batch in batches(storage, path, [SUBJECT]):
        yield from pc.unique(batch.column(SUBJECT).cast(pa.string()).drop_null()).to_pylist()


def rewrite_without(
    storage: Storage, path: str, subjects: Collection[str], target: str, scratch: Path
) -> Stored:
    """Write the part's other rows under a new name; the old file stays until it is purged.

    Built anew from plain values of the three columns: another column, a dictionary that lists every value
    there ever was, or metadata could carry the erased along.
    """
    wanted = identifiers.wanted(subjects)
    local = scratch / "rewritten.parquet"
    try:
        with storage.open(path) as file:
            source = pq.ParquetFile(file)
            plain = _plain_schema(source.schema_arrow)
            with pq.ParquetWriter(local, plain, compression="zstd") as writer:
                for batch in _batches(source, plain.names):
                    keep = pc.invert(identifiers.belonging(batch.column(SUBJECT), wanted))
                    kept = batch.filter(keep)
                    columns = [kept.column(field.name).cast(field.type) for field in plain]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=plain))
        with local.open("rb") as rewritten:
            return storage.write(target, iter(lambda: rewritten.read(CHUNK), b""))
    finally:
        local.unlink(missing_ok=True)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The known columns that are there, without dictionaries, metadata or names inside a list."""
    names = [name for name in (SUBJECT, LABEL, FEATURES) if name in schema.names]
    return pa.schema([(name, _plain(name, schema.field(name).type)) for name in names])


def _plain(name: str, kind: pa.DataType) -> pa.DataType:
    if name == SUBJECT:
        return pa.string()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if name == LABEL and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return kind
    if name == FEATURES and pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return pa.list_(kind.value_type, kind.list_size)
    raise DatasetError(f"the column {name} cannot be kept as {kind}")


ALL_ROWS = "all"
"""The one class of rows whose targets are numbers: a histogram of those would list everyone's."""


def class_counts(
    storage: Storage, path: str, subjects: Collection[str] | None = None, *, classes: bool = True
) -> Counter[str]:
    """Rows per label, of everyone or of `subjects`; without `classes` their number alone."""
    wanted = None if subjects is None else identifiers.wanted(subjects)
    counts: Counter[str] = Counter()
    for batch in batches(storage, path, [SUBJECT, LABEL]):
        labels = batch.column(LABEL)
        if wanted is not None:
            labels = labels.filter(identifiers.belonging(batch.column(SUBJECT), wanted))
        if not classes:
            counts[ALL_ROWS] += len(labels)
            continue
        for entry in labels.value_counts():
            counts[str(entry["values"].as_py())] += entry["counts"].as_py()
    return counts


def memory_map(
    storage: Storage,
    paths: Sequence[str],
    width: int,
    scratch: Path,
    subjects: Collection[str] | None = None,
    span: range | None = None,
) -> MemoryMapped:
    """Lay the rows of all parts out as two raw files in `scratch`, and map them.

    Only those of `subjects`; or those at `span`, counted through all parts, and no others are read.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    rows, dtype = 0, _precision(storage, paths)
    span = range(sum(row_count(storage, path) for path in paths)) if span is None else span
    if subjects is None:
        _require_room(len(span) * row_bytes(width), scratch)
    wanted = None if subjects is None else identifiers.wanted(subjects)
    columns = [LABEL, FEATURES] if wanted is None else [SUBJECT, LABEL, FEATURES]
    with (scratch / "features.bin").open("wb") as features, (scratch / "labels.bin").open("wb") as labels:
        for batch in _at(storage, paths, columns, span):
            if wanted is not None:
                batch = batch.filter(identifiers.belonging(batch.column(SUBJECT), wanted))
            values = _dense(batch, width)
            rows += len(values)
            values.astype(dtype, copy=False).tofile(features)
            batch.column(LABEL).to_numpy(zero_copy_only=False).astype(np.float64).tofile(labels)
    if rows == 0:
        raise DatasetError("no row is left")
    return MemoryMapped(
        np.memmap(scratch / "features.bin", dtype, "r", shape=(rows, width)),
        np.memmap(scratch / "labels.bin", np.float64, "r", shape=(rows,)),
    )


def _at(
    storage: Storage, paths: Sequence[str], columns: Sequence[str], span: range
) -> Iterator[pa.RecordBatch]:
    """The rows at `span`; parts and row groups without any are not read."""
    first = 0
    for path in paths:
        count = row_count(storage, path)
        if first < span.stop and first + count > span.start:
            with storage.open(path) as file:
                source = pq.ParquetFile(file)
                groups, at = _groups(source, range(span.start - first, span.stop - first))
                for batch in _batches(source, columns, groups):
                    low, high = max(span.start - first - at, 0), min(span.stop - first - at, len(batch))
                    if low < high:
                        yield batch.slice(low, high - low)
                    at += len(batch)
        first += count


def _groups(source: pq.ParquetFile, span: range) -> tuple[list[int], int]:
    """The row groups that hold rows of `span`, and where the first of them begins."""
    found: list[int] = []
    begin = at = 0
    for index in range(source.metadata.num_row_groups):
        count = source.metadata.row_group(index).num_rows
        if at < span.stop and at + count > span.start:
            begin = begin if found else at
            found.append(index)
        at += count
    return found, begin


def _require_room(needed: int, scratch: Path) -> None:
    """Asked before the first row is written: a small file may hold very many."""
    free = shutil.disk_usage(scratch).free
    if needed > free:
        raise DatasetError(f"the rows need {needed} bytes in the working folder, where {free} are free")


def _precision(storage: Storage, paths: Sequence[str]) -> np.dtype[np.floating]:
    """float32 when every part is: half the memory, and exactly the values that were sent."""
    for path in paths:
        with storage.open(path) as file:
            if pq.ParquetFile(file).schema_arrow.field(FEATURES).type.value_type != pa.float32():
                return np.dtype(np.float64)
    return np.dtype(np.float32)


def _dense(batch: pa.RecordBatch, width: int) -> npt.NDArray[np.floating]:
    column = batch.column(FEATURES)
    if column.null_count or batch.column(LABEL).null_count or column.flatten().null_count:
        raise DatasetError("a label, a row or a feature is missing (null)")
    values: npt.NDArray[np.floating] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return values
