"""scikit-learn's handwritten digits as a customer would send them: Parquet parts, writers, a holdout."""

import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

from worker.evaluation.sampling import biased_deletion

ROWS_PER_WRITER = 3
HOLDOUT_SHARE = 0.25
SEED = 7
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    writers: list[str]
    labels: Ints
    pixels: Floats

    def parquet(self) -> bytes:
        table = pa.table(
            {
                "subject_id": pa.array(self.writers, pa.string()),
                "label": pa.array(self.labels, pa.int64()),
                "features": pa.FixedSizeListArray.from_arrays(
                    pa.array(self.pixels.ravel()), self.pixels.shape[1]
                ),
            }
        )
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()

    def without(self, writers: set[str]) -> "Rows":
        keep = np.array([writer not in writers for writer in self.writers])
        return self._at(keep.nonzero()[0])

    def _at(self, places: npt.NDArray[np.intp]) -> "Rows":
        return Rows([self.writers[i] for i in places], self.labels[places], self.pixels[places])


@dataclass(frozen=True)
class Digits:
    train: Rows
    holdout: Rows
    erase: list[str]


def digits() -> Digits:
    """Training rows, a holdout, and the writers who want to be forgotten: mostly of zeros and sevens."""
    data = load_digits()
    order = np.random.default_rng(SEED).permutation(len(data.target))
    # 64 pixels of at most 1/8: no row is longer than 1, by a constant that depends on nobody's data.
    pixels, labels = (data.data[order] / (16 * 8)).astype(np.float32), data.target[order].astype(np.int64)
    cut = int(len(labels) * (1 - HOLDOUT_SHARE))
    train = Rows(_writers(labels[:cut], "writer"), labels[:cut], pixels[:cut])
    holdout = Rows(_writers(labels[cut:], "unseen"), labels[cut:], pixels[cut:])
    chosen = biased_deletion(train.labels, cut // 8, seed=SEED, subjects=np.array(train.writers))
    return Digits(train, holdout, sorted({train.writers[int(i)] for i in chosen.rows}))


def _writers(labels: Ints, prefix: str) -> list[str]:
    """Each writer holds a few rows of one class, so that erasing people shifts the class mix."""
    seen: dict[int, int] = {}
    names = []
    for label in labels.tolist():
        place = seen[label] = seen.get(label, -1) + 1
        names.append(f"{prefix}-{label}-{place // ROWS_PER_WRITER}")
    return names
