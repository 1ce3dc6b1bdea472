"""Dataset parts: Parquet files with `subject_id`, `label` and `features`, streamed and never fully loaded.

A model with a representation also has raw parts, whose rows are in the column `image` or `text` instead, or
in `features` before the representation.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.core.storage import CHUNK, Storage, StorageError, Stored
from lethe.identifiers import RULE
from worker.data import identifiers, page_headers

SUBJECT, LABEL, FEATURES = "subject_id", "label", "features"
IMAGE, TEXT = "image", "text"
BATCH_ROWS, BATCH_BYTES = 8192, 64 << 20  # whichever is less, since a row can be wide
# Images and texts can be of any size, and a small compressed file can repeat a large one very often.
RAW_ROWS, RAW_PIECE_ROWS, RAW_PIECE_BYTES = 64, 4, 256 << 20


class DatasetError(Exception):
    """The data does not fit the manifest. The message says where and how, never what a row contains."""


# What reading a damaged or unsuitable Parquet file can raise. Arrow raises OSError for a broken footer.
FAULTS = (pa.ArrowException, DatasetError, KeyError, OSError, ValueError)


def is_damage(problem: BaseException) -> bool:
    """Return whether one of `FAULTS` is the file's. An error with an errno comes from a disk or a network."""
    return getattr(problem, "errno", None) is None


@dataclass(frozen=True)
class MemoryMapped:
    """Rows as the engine reads them: raw files in a scratch folder, mapped into memory."""

    features: npt.NDArray[np.floating]
    labels: npt.NDArray[np.float64]


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds byte strings."""
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks)


def is_string(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text."""
    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists, of one size by type or of any size."""
    checks = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    return any(check(kind) for check in checks)


RAW_COLUMN = {"vector": FEATURES, "image": IMAGE, "text": TEXT}
"""The column that holds the raw rows of each kind of representation."""


def schema_problems(
    storage: Storage,
    path: str,
    *,
    width: int,
    real_labels: bool,
    needs_subject: bool = True,
    column: str = FEATURES,
) -> list[str]:
    """Return every way in which the part's columns differ from what the manifest describes.

    `column` is the one that holds the rows. `width` is the number of features, if they are in it.
    """
    with storage.open(path) as file:
        try:
            source = pq.ParquetFile(file)
            schema = source.schema_arrow
            oversized = _oversized_group(source, width) if column == FEATURES else None
        except (pa.ArrowException, OSError, ValueError) as problem:
            if not is_damage(problem):
                raise
            return ["not a Parquet file"]
    names = (SUBJECT, LABEL, column)
    if repeated := [name for name in names if schema.names.count(name) > 1]:
        return [f"the column {name} occurs more than once" for name in repeated]
    missing = [
        f"the column {name} is missing"
        for name in names
        if name not in schema.names and (needs_subject or name != SUBJECT)
    ]
    kinds = {name: schema.field(name).type for name in set(names) & set(schema.names)}
    unsuitable = [
        _subject_problem(kinds[SUBJECT]) if SUBJECT in kinds else None,
        _label_problem(kinds[LABEL], real_labels) if LABEL in kinds else None,
        _rows_problem(column, kinds[column], width) or oversized if column in kinds else None,
    ]
    problems = missing + [problem for problem in unsuitable if problem is not None]
    return problems or page_problems(storage, path, names)


def page_problems(storage: Storage, path: str, columns: Collection[str]) -> list[str]:
    """Return why the pages of these columns must not be unpacked. Call this before reading a new file."""
    with storage.open(path) as file:
        try:
            largest = page_headers.largest_page(file, pq.ParquetFile(file), columns)
        except page_headers.PageHeaderError:
            return ["the file is damaged: the header of a page cannot be read"]
    if largest <= page_headers.LARGEST_PAGE:
        return []
    return [
        f"a page would unpack to {largest:,} bytes, but at most {page_headers.LARGEST_PAGE:,} are read; "
        "write the file with smaller pages"
    ]


def _subject_problem(kind: pa.DataType) -> str | None:
    if is_string(kind):
        return None
    return f"{SUBJECT} must be a string column, not {kind}"


def _label_problem(kind: pa.DataType, real_labels: bool) -> str | None:
    if pa.types.is_integer(kind) or (real_labels and pa.types.is_floating(kind)):
        return None
    return f"{LABEL} must be {'a number' if real_labels else 'an integer'}, not {kind}"


def _rows_problem(column: str, kind: pa.DataType, width: int) -> str | None:
    if column == IMAGE:
        return None if is_binary(kind) else f"{IMAGE} must be a binary column, not {kind}"
    if column == TEXT:
        return None if is_string(kind) else f"{TEXT} must be a string column, not {kind}"
    if not is_list(kind) or not pa.types.is_floating(kind.value_type):
        return f"{FEATURES} must be a list of floats, not {kind}"
    if pa.types.is_fixed_size_list(kind) and kind.list_size != width:
        return f"{FEATURES} has {kind.list_size} values per row, but the manifest says {width}"
    return None


def has_subjects(storage: Storage, path: str) -> bool:
    """Return whether the part has a `subject_id` column. A holdout part may lack it."""
    with storage.open(path) as file:
        return SUBJECT in pq.ParquetFile(file).schema_arrow.names


def row_count(storage: Storage, path: str) -> int:
    """Return the number of rows, from the file's footer."""
    with storage.open(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def open_part(file: IO[bytes]) -> pq.ParquetFile:
    """Open a part to read its rows with `file_batches`.

    Identifiers are read as a dictionary: a small file can repeat one very long identifier in every row.
    """
    plain = pq.ParquetFile(file)
    schema = plain.schema_arrow
    if SUBJECT not in schema.names or not is_string(schema.field(SUBJECT).type):
        return plain
    return pq.ParquetFile(file, metadata=plain.metadata, read_dictionary=[SUBJECT])


def batches(
    storage: Storage, path: str, columns: Sequence[str], *, longest_subject: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the part, in batches of limited size (see `file_batches`)."""
    with storage.open(path) as file:
        yield from file_batches(open_part(file), columns, longest_subject=longest_subject)


def file_batches(
    source: pq.ParquetFile,
    columns: Sequence[str],
    groups: list[int] | None = None,
    *,
    longest_subject: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a part, in batches of limited size, from some row groups or from all.

    Raises `DatasetError` before it decodes an identifier of more than `longest_subject` bytes.
    """
    wide = _values_per_row(source) if FEATURES in columns else 1
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes(wide)))
    if IMAGE in columns or TEXT in columns:
        pieces = source.iter_batches(RAW_PIECE_ROWS, row_groups=groups, columns=list(columns))
        yield from _joined_pieces(_with_plain_subjects(pieces, longest_subject))
        return
    read = source.iter_batches(rows, row_groups=groups, columns=list(columns))
    yield from _with_plain_subjects(read, longest_subject)


def _with_plain_subjects(
    rows: Iterator[pa.RecordBatch], longest_subject: int | None
) -> Iterator[pa.RecordBatch]:
    """Decode identifiers from their dictionary, in slices of about `BATCH_BYTES` bytes at most."""
    first = 0
    for batch in rows:
        place = batch.schema.get_field_index(SUBJECT)
        if place < 0 or not pa.types.is_dictionary(batch.schema.field(place).type):
            yield batch
            continue
        column = batch.column(place)
        lengths = pc.binary_length(column.dictionary)
        longest = pc.max(lengths).as_py() or 0
        if longest_subject is not None and longest > longest_subject:
            row = pc.index(pc.greater(lengths.take(column.indices), longest_subject), True).as_py()
            if row >= 0:  # the dictionary may list values that no row of this batch has
                raise DatasetError(f"row {first + row}: {SUBJECT} {RULE}")
        first += batch.num_rows
        step = max(1, BATCH_BYTES // max(longest, 1))
        for start in range(0, max(batch.num_rows, 1), step):
            piece = batch.slice(start, step)
            yield piece.set_column(place, SUBJECT, piece.column(place).cast(pa.string()))


def _joined_pieces(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join pieces of a few rows into batches of at most `RAW_ROWS` rows and about `BATCH_BYTES` bytes."""
    joined: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        if piece.nbytes > RAW_PIECE_BYTES:
            raise DatasetError(
                f"{RAW_PIECE_ROWS} rows in succession have more than {RAW_PIECE_BYTES:,} bytes together; "
                "send smaller images or texts"
            )
        joined.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if rows >= RAW_ROWS or size >= BATCH_BYTES:
            yield pa.concat_batches(joined)
            joined, rows, size = [], 0, 0
    if joined:
        yield pa.concat_batches(joined)


def undamaged(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield these batches, and raise `DatasetError` where the file itself turns out to be damaged."""
    try:
        yield from rows
    except (pa.ArrowException, OSError) as problem:
        if not is_damage(problem):
            raise
        raise DatasetError("the file is damaged: its rows cannot be read") from None


def _values_per_row(source: pq.ParquetFile) -> int:
    """Return the number of features per row: from the type, or for lists of any size from the footer.

    The footer counts the values of each row group. The largest mean of a group is returned.
    """
    kind = source.schema_arrow.field(FEATURES).type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    if not is_list(kind):
        return 1
    return max((-(-values // rows) for rows, values in _group_sizes(source) if rows), default=1)


def _group_sizes(source: pq.ParquetFile) -> Iterator[tuple[int, int]]:
    """Yield the rows of each row group, and the values in its lists. A missing list counts as one value."""
    for index in range(source.metadata.num_row_groups):
        group = source.metadata.row_group(index)
        columns = (group.column(place) for place in range(group.num_columns))
        values = (c.num_values for c in columns if c.path_in_schema.partition(".")[0] == FEATURES)
        yield group.num_rows, sum(values)


def _oversized_group(source: pq.ParquetFile, width: int) -> str | None:
    """Describe the first row group with so many values that reading it could exhaust the memory."""
    first = 0
    for rows, values in _group_sizes(source):
        if 8 * (values - rows * width) > BATCH_BYTES:
            return f"rows {first} to {first + rows - 1}: {wrong_length(width)}"
        first += rows
    return None


def wrong_length(width: int) -> str:
    """Say that a row has too few or too many features."""
    return f"the number of features is not {width}, as the manifest says"


def row_bytes(width: int) -> int:
    """Return the size of one row with its label in float64."""
    return 8 * (width + 1)


def check_bytes(storage: Storage, path: str, sha256: str) -> None:
    """Raise unless the file has the recorded digest, which certificates commit to."""
    digest = hashlib.sha256()
    for chunk in storage.read(path):
        digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise StorageError(f"not the file that was stored: {path}")


@contextmanager
def checking_bytes(storage: Storage, files: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Check the digests of these files, given as pairs of path and digest, while the block reads them.

    The block must not pass on anything from the files before it has ended. Raises `StorageError` at its end
    if a file is not the one that was stored. If the block itself fails, a wrong file is the likelier reason,
    so its error is raised instead.
    """
    with ThreadPoolExecutor(1) as pool:
        checks = [pool.submit(check_bytes, storage, path, sha256) for path, sha256 in files]
        try:
            yield
        finally:
            for check in checks:
                check.result()


def holders(storage: Storage, path: str, subjects: Collection[str]) -> set[str]:
    """Return which of `subjects` have rows in this part, in any Unicode form. Reads one column only."""
    if not has_subjects(storage, path):
        return set()
    names = sorted(subjects)
    forms = identifiers.normalised(pa.array(names, pa.string()))
    present: set[str] = set()
    for batch in batches(storage, path, [SUBJECT]):
        column = identifiers.normalised(batch.column(SUBJECT))
        present.update(column.filter(pc.is_in(column, value_set=forms)).to_pylist())
    return {name for name, form in zip(names, forms.to_pylist(), strict=True) if form in present}


def near_matches(storage: Storage, path: str, folds: Collection[str]) -> dict[str, set[str]]:
    """Return the identifiers in this part whose folded form is one of `folds`, grouped by that form.

    Identifiers are returned in Unicode normal form C.
    """
    matches: dict[str, set[str]] = {}
    if not has_subjects(storage, path):
        return matches
    for batch in batches(storage, path, [SUBJECT]):
        for subject in pc.unique(identifiers.normalised(batch.column(SUBJECT)).drop_null()).to_pylist():
            if (fold := identifiers.folded(subject)) in folds:
                matches.setdefault(fold, set()).add(subject)
    return matches


def subjects(storage: Storage, path: str) -> Iterator[str]:
    """Yield the identifier of everyone in this part. An identifier may be repeated."""
    for batch in batches(storage, path, [SUBJECT]):
        yield from pc.unique(batch.column(SUBJECT).cast(pa.string()).drop_null()).to_pylist()


def rewrite_without(
    storage: Storage,
    path: str,
    subjects: Collection[str],
    target: str,
    scratch: Path,
    *,
    copy_to: "RowWriter | None" = None,
) -> Stored:
    """Write the part without these people's rows under a new name. The old file stays until it is purged.

    The new file is built from plain values of the known columns. Another column, a dictionary that still
    lists removed values, or metadata could carry erased data along. The rows that stay are also added to
    `copy_to`, so that a fit need not decode the new file. Reading, encoding and copying run side by side.
    """
    erased = identifiers.lookup_set(subjects)
    local = scratch / "rewritten.parquet"
    try:
        with storage.open(path) as file:
            source = open_part(file)
            plain = plain_schema(source.schema_arrow)
            with (
                open_writer(local, plain) as writer,
                closing(prefetched(file_batches(source, plain.names))) as rows,
                ThreadPoolExecutor(1) as encoder,
            ):
                encoded: Future[None] | None = None
                for batch in rows:
                    kept = _without(batch, erased, plain)
                    if encoded is not None:
                        encoded.result()  # at most one batch waits, so memory does not grow with the file
                    encoded = encoder.submit(writer.write_batch, kept)
                    if copy_to is not None:
                        copy_to.add(kept)
                if encoded is not None:
                    encoded.result()
        with local.open("rb") as rewritten:
            return storage.write(target, iter(lambda: rewritten.read(CHUNK), b""))
    finally:
        local.unlink(missing_ok=True)


def _without(batch: pa.RecordBatch, erased: pa.Array, plain: pa.Schema) -> pa.RecordBatch:
    """Return the batch without the rows of these people, as plain values of the known columns."""
    leaves = identifiers.belongs_to(batch.column(SUBJECT), erased)
    if pc.any(leaves, min_count=0).as_py():
        batch = batch.filter(pc.invert(leaves))
    columns = [batch.column(field.name).cast(field.type) for field in plain]
    return pa.RecordBatch.from_arrays(columns, schema=plain)


def prefetched(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    """Yield the same batches, and read the next one in another thread meanwhile.

    Close the generator before what it reads from.
    """
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


def open_writer(path: Path | str, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet file for writing, with settings that are fast to write and to read again.

    A dictionary of feature values would take more time to build than it saves, and nobody reads statistics.
    """
    repeated = [name for name in (SUBJECT, LABEL) if name in schema.names]
    return pq.ParquetWriter(path, schema, compression="lz4", use_dictionary=repeated, write_statistics=False)


def plain_schema(
    schema: pa.Schema, columns: Sequence[str] = (SUBJECT, LABEL, FEATURES, IMAGE, TEXT)
) -> pa.Schema:
    """Return the schema of the known columns, without dictionaries, metadata or names inside lists."""
    names = [name for name in columns if name in schema.names]
    return pa.schema([(name, _plain(name, schema.field(name).type)) for name in names])


def _plain(name: str, kind: pa.DataType) -> pa.DataType:
    if name == SUBJECT:
        return pa.string()
    if name == IMAGE and is_binary(kind):
        return pa.large_binary()
    if name == TEXT and is_string(kind):
        return pa.large_string()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if name == LABEL and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return kind
    if name == FEATURES and is_list(kind) and pa.types.is_floating(kind.value_type):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
        return pa.list_(kind.value_type, size)
    raise DatasetError(f"the column {name} has the type {kind}, which cannot be rewritten")


ALL_ROWS = "all"
"""The single class that real-valued targets are counted under. A histogram of them would list the targets."""


def class_counts(
    storage: Storage, path: str, subjects: Collection[str] | None = None, *, classes: bool = True
) -> Counter[str]:
    """Count rows per label, of everyone or of `subjects` only. Without `classes`, count rows alone."""
    selected = None if subjects is None else identifiers.lookup_set(subjects)
    counts: Counter[str] = Counter()
    for batch in batches(storage, path, [SUBJECT, LABEL]):
        labels = batch.column(LABEL)
        if selected is not None:
            labels = labels.filter(identifiers.belongs_to(batch.column(SUBJECT), selected))
        if not classes:
            counts[ALL_ROWS] += len(labels)
            continue
        for entry in labels.value_counts():
            counts[str(entry["values"].as_py())] += entry["counts"].as_py()
    return counts


class RowWriter:
    """Writes decoded rows to two raw files in a scratch folder, and maps them into memory at the end."""

    def __init__(self, folder: Path, width: int, dtype: np.dtype[np.floating]) -> None:
        """Create the folder and the files. The features are written as `dtype`, the labels as float64."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._width, self._dtype, self._rows = folder, width, dtype, 0
        self._features = (folder / "features.bin").open("wb")
        self._labels = (folder / "labels.bin").open("wb")

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._features.close()
        self._labels.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch. Raises `DatasetError` if one lacks a value or has a wrong width."""
        values = _dense(batch, self._width)
        self._rows += len(values)
        values.astype(self._dtype, copy=False).tofile(self._features)
        batch.column(LABEL).to_numpy(zero_copy_only=False).astype(np.float64).tofile(self._labels)

    def map(self) -> MemoryMapped:
        """Map the rows that were added. Nothing can be added afterwards."""
        self.__exit__()
        if self._rows == 0:
            raise DatasetError("no rows are left")
        # Copy on write, because torch takes only writable arrays without copying them. Nobody writes to them.
        return MemoryMapped(
            np.memmap(self._folder / "features.bin", self._dtype, "c", shape=(self._rows, self._width)),
            np.memmap(self._folder / "labels.bin", np.float64, "c", shape=(self._rows,)),
        )


def memory_map(
    storage: Storage,
    paths: Sequence[str],
    width: int,
    scratch: Path,
    subjects: Collection[str] | None = None,
    span: range | None = None,
) -> MemoryMapped:
    """Write the rows of all parts to two raw files in `scratch`, and map them.

    With `subjects`, only these people's rows are taken. With `span`, only the rows at these positions,
    counted through all parts, and no others are read.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    span = range(sum(row_count(storage, path) for path in paths)) if span is None else span
    if subjects is None:
        require_room(len(span) * row_bytes(width), scratch)
    selected = None if subjects is None else identifiers.lookup_set(subjects)
    columns = [LABEL, FEATURES] if selected is None else [SUBJECT, LABEL, FEATURES]
    with (
        RowWriter(scratch, width, precision(storage, paths)) as writer,
        closing(prefetched(_batches_at(storage, paths, columns, span))) as read,
    ):
        for batch in read:
            if selected is not None:
                batch = batch.filter(identifiers.belongs_to(batch.column(SUBJECT), selected))
            writer.add(batch)
        return writer.map()


def copy_rows(storage: Storage, path: str, writer: RowWriter) -> None:
    """Add all rows of a part to `writer`."""
    with closing(prefetched(batches(storage, path, [LABEL, FEATURES]))) as read:
        for batch in read:
            writer.add(batch)


def _batches_at(
    storage: Storage, paths: Sequence[str], columns: Sequence[str], span: range
) -> Iterator[pa.RecordBatch]:
    """Yield the rows at `span`. Parts and row groups outside it are not read."""
    first = 0
    for path in paths:
        count = row_count(storage, path)
        if first < span.stop and first + count > span.start:
            with storage.open(path) as file:
                source = open_part(file)
                groups, at = _groups_at(source, range(span.start - first, span.stop - first))
                for batch in file_batches(source, columns, groups):
                    low, high = max(span.start - first - at, 0), min(span.stop - first - at, len(batch))
                    if low < high:
                        yield batch.slice(low, high - low)
                    at += len(batch)
        first += count


def _groups_at(source: pq.ParquetFile, span: range) -> tuple[list[int], int]:
    """Return the row groups that overlap `span`, and the position where the first of them begins."""
    groups: list[int] = []
    begin = at = 0
    for index in range(source.metadata.num_row_groups):
        count = source.metadata.row_group(index).num_rows
        if at < span.stop and at + count > span.start:
            begin = begin if groups else at
            groups.append(index)
        at += count
    return groups, begin


def require_room(needed: int, scratch: Path) -> None:
    """Raise if the rows would not fit on the disk. A small compressed file may hold very many."""
    free = shutil.disk_usage(scratch).free
    if needed > free:
        raise DatasetError(
            f"the rows need {needed} bytes in the scratch folder, but only {free} bytes are free"
        )


def precision(storage: Storage, paths: Sequence[str]) -> np.dtype[np.floating]:
    """Return float32 if every part uses it, which halves the memory and loses nothing, and else float64."""
    for path in paths:
        with storage.open(path) as file:
            if pq.ParquetFile(file).schema_arrow.field(FEATURES).type.value_type != pa.float32():
                return np.dtype(np.float64)
    return np.dtype(np.float32)


def has_width(lists: pa.Array, width: int) -> pa.Array:
    """Return for each list whether it has `width` values, or null where the list is missing."""
    return pc.equal(pc.list_value_length(lists), width)


def _dense(batch: pa.RecordBatch, width: int) -> npt.NDArray[np.floating]:
    column = batch.column(FEATURES)
    if column.null_count or batch.column(LABEL).null_count or column.flatten().null_count:
        raise DatasetError("a label, a row of features or a single feature is missing (null)")
    if not np.asarray(has_width(column, width)).all():
        raise DatasetError(wrong_length(width))
    values: npt.NDArray[np.floating] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return values
