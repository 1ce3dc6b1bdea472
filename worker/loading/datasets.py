"""Datasets: Parquet parts with `subject_id`, `label` and `features`, streamed, never all in memory."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.storage import CHUNK, Storage, Stored

SUBJECT, LABEL, FEATURES = "subject_id", "label", "features"
BATCH_ROWS = 8192


class DatasetError(Exception):
    """The data does not fit the manifest; the message says where and how, never what a row holds."""


@dataclass(frozen=True)
class MemoryMapped:
    """Rows as the engine reads them: raw files in a scratch folder, mapped, not loaded."""

    features: npt.NDArray[np.floating]
    labels: npt.NDArray[np.float64]


def check_schema(storage: Storage, path: str, *, width: int, real_labels: bool) -> int:
    """Rows of one part, or a DatasetError that names the column at fault."""
    with storage.open(path) as file:
        try:
            parquet = pq.ParquetFile(file)
        except pa.ArrowInvalid as problem:
            raise DatasetError(f"not a Parquet file ({str(problem).splitlines()[0]})") from None
        schema = parquet.schema_arrow
        for column in (SUBJECT, LABEL, FEATURES):
            if column not in schema.names:
                raise DatasetError(f"the column {column} is missing")
        if not (
            pa.types.is_string(schema.field(SUBJECT).type)
            or pa.types.is_large_string(schema.field(SUBJECT).type)
        ):
            raise DatasetError(f"{SUBJECT} must be a string column, not {schema.field(SUBJECT).type}")
        _check_features(schema.field(FEATURES).type, width)
        label = schema.field(LABEL).type
        if not (pa.types.is_integer(label) or (real_labels and pa.types.is_floating(label))):
            raise DatasetError(f"{LABEL} has the type {label}")
        return int(parquet.metadata.num_rows)


def _check_features(kind: pa.DataType, width: int) -> None:
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_floating(kind.value_type):
        raise DatasetError(f"{FEATURES} must be a fixed-size list of floats, not {kind}")
    if kind.list_size != width:
        raise DatasetError(f"{FEATURES} has {kind.list_size} values a row, the manifest says {width}")


def row_count(storage: Storage, path: str) -> int:
    with storage.open(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def batches(storage: Storage, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with storage.open(path) as file:
        yield from pq.ParquetFile(file).iter_batches(BATCH_ROWS, columns=list(columns))


def holders(storage: Storage, path: str, subjects: Collection[str]) -> set[str]:
    """Which of `subjects` have rows in this part; reads one column only."""
    wanted = pa.array(sorted(subjects), pa.string())
    found: set[str] = set()
    for batch in batches(storage, path, [SUBJECT]):
        column = batch.column(SUBJECT).cast(pa.string())
        found.update(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())
    return found


def rewrite_without(
    storage: Storage, path: str, subjects: Collection[str], target: str, scratch: Path
) -> Stored:
    """Write the part's other rows under a new name; the old file stays until it is purged."""
    wanted = pa.array(sorted(subjects), pa.string())
    local = scratch / "rewritten.parquet"
    with storage.open(path) as file:
        source = pq.ParquetFile(file)
        with pq.ParquetWriter(local, source.schema_arrow, compression="zstd") as writer:
            for batch in source.iter_batches(BATCH_ROWS):
                keep = pc.invert(pc.is_in(batch.column(SUBJECT).cast(pa.string()), value_set=wanted))
                writer.write_batch(batch.filter(keep))
    try:
        with local.open("rb") as rewritten:
            return storage.write(target, iter(lambda: rewritten.read(CHUNK), b""))
    finally:
        local.unlink()


def class_counts(storage: Storage, path: str, subjects: Collection[str] | None = None) -> Counter[str]:
    """Rows per label, of everyone or of `subjects`."""
    wanted = None if subjects is None else pa.array(sorted(subjects), pa.string())
    counts: Counter[str] = Counter()
    for batch in batches(storage, path, [SUBJECT, LABEL]):
        labels = batch.column(LABEL)
        if wanted is not None:
            labels = labels.filter(pc.is_in(batch.column(SUBJECT).cast(pa.string()), value_set=wanted))
        for entry in labels.value_counts():
            counts[str(entry["values"].as_py())] += entry["counts"].as_py()
    return counts


def memory_map(storage: Storage, paths: Sequence[str], width: int, scratch: Path) -> MemoryMapped:
    """Lay the rows of all parts out as two raw files in `scratch`, and map them."""
    scratch.mkdir(parents=True, exist_ok=True)
    rows, dtype = 0, _precision(storage, paths)
    with (scratch / "features.bin").open("wb") as features, (scratch / "labels.bin").open("wb") as labels:
        for path in paths:
            for batch in batches(storage, path, [LABEL, FEATURES]):
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
