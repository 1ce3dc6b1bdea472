"""Embeddings: registers a classifier on a table of vectors, and loads its certified weights as arrays.

from lethe.integrations.embeddings import load, register

register(client, "tickets", table, subject="customer", label="topic", features="e_*", lam=1e-4,
         origin="public encoder, version 3")
...                                # people are erased
head = load(client, "tickets")
head.predict(vectors)
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lethe.certificate.keys import KeySet
from lethe.client.responses import Model
from lethe.integrations.errors import BadTable, CannotRebuild, require_libraries
from lethe.integrations.noise_effect import NoiseTooLarge, NoiseUnknown, declared_rows, warn_about_noise
from lethe.integrations.registration import register_files
from lethe.integrations.released_weights import fetch_weights
from lethe.integrations.tables import FEATURES, WrittenTable, write_parquet

if TYPE_CHECKING:
    from lethe.client.api import Lethe

__all__ = ["LinearHead", "NoiseTooLarge", "NoiseUnknown", "load", "register"]
ANNOTATION = "embeddings"
_PURPOSE = "The integration for embeddings"


@dataclass(frozen=True)
class LinearHead:
    """A linear classifier: the score of class k is weight[k] · vector + bias[k].

    `classes` are the labels that were registered, in the order of the scores.
    """

    weight: Any  # (classes, width), a NumPy array
    bias: Any  # (classes,), a NumPy array
    classes: tuple[Hashable, ...]

    def scores(self, vectors: Any) -> Any:
        """Return the scores of all classes. (rows, width) -> (rows, classes)"""
        return vectors @ self.weight.T + self.bias

    def predict(self, vectors: Any) -> list[Hashable]:
        """Return the class with the highest score for each vector."""
        return [self.classes[place] for place in self.scores(vectors).argmax(axis=1)]


def register(
    client: "Lethe",
    name: str,
    table: Any,
    *,
    subject: Any,
    label: Any,
    lam: float,
    origin: str,
    features: str | Sequence[str] = FEATURES,
    classes: Sequence[Hashable] | None = None,
    holdout: Any = None,
    row_length: float | None = None,
    policy: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
    wait: bool = True,
    timeout: float | None = None,
) -> Model:
    """Register a classifier of the vectors in a table as the model `name`. The service trains it.

    `table` is anything that `write_parquet` reads: a pandas or polars DataFrame, an Arrow table, a NumPy
    array, a mapping of columns, or a CSV or Parquet file. `subject` is the column that says whose row it is,
    `label` the column of the class, and `features` the column of vectors, or names or patterns of numeric
    columns. `holdout` is another table with the same columns, for evaluation only.

    `lam` is λ in mean loss + (λ/2)·‖weights‖², which includes the bias. `origin` says which public encoder
    the vectors come from. It is printed on certificates. `classes` lists the labels in the order of the
    scores. By default it is the sorted labels of the table.

    Raise `BadTable` with row and column if the table cannot be used. Warn with `NoiseTooLarge` if the noise
    of a release will probably spoil the classifier. This is judged by λ, by the policy and, if you pass it,
    by `row_length`: the usual length of a vector, as far as you know it without looking at rows that can be
    erased. For normalised embeddings it is 1. If you pass neither `row_length` nor a target distance, it
    warns with `NoiseUnknown`.
    """
    require_libraries(_PURPOSE, "pyarrow", "numpy")
    with TemporaryDirectory(prefix="lethe-") as folder:
        columns: dict[str, Any] = {"subject": subject, "label": label, "features": features}
        written = write_parquet(table, Path(folder) / "data", classes=classes, **columns)
        known = _class_list(written, classes)
        held = None
        if holdout is not None:
            held = write_parquet(holdout, Path(folder) / "holdout", classes=written.classes, **columns).path
        manifest = {
            "family": "softmax",
            "width": written.width,
            "classes": len(known),
            "lambda": lam,
            "origins": {"features": origin, "constants": "set by the owner", **(origins or {})},
            "policy": dict(policy or {}),
            "annotations": {ANNOTATION: json.dumps({"classes": known})},
        }
        warn_about_noise(manifest, None if row_length is None else declared_rows(row_length))
        return register_files(
            client, name, manifest, data=written.path, holdout=held, wait=wait, timeout=timeout
        )


def load(
    client: "Lethe",
    name: str,
    *,
    version: int | None = None,
    keys: KeySet | bytes | None = None,
    certified: bool = True,
) -> LinearHead:
    """Return the certified weights of the model `name`, which was registered from embeddings.

    The certificate and the weights are verified first. Pass the issuer's `keys` if you have them from another
    source. The list of classes comes from the manifest's annotations, which the certificate does not cover.
    `version` chooses an earlier version. Version 0, the model as registered, has no certificate. To load it,
    pass `certified=False`.
    """
    require_libraries(_PURPOSE, "numpy")
    released = fetch_weights(client, name, version=version, keys=keys, certified=certified)
    described = released.model.manifest.annotations.get(ANNOTATION)
    if described is None:
        raise CannotRebuild(f"{name} was not registered from embeddings, so its list of classes is not known")
    weight, bias = released.array("weight"), released.array("bias")
    return LinearHead(weight, bias, tuple(json.loads(described)["classes"]))


def _class_list(written: WrittenTable, classes: Sequence[Hashable] | None) -> list[Hashable]:
    """Return the labels in the order of the scores."""
    import pyarrow.parquet as pq

    if written.column != FEATURES:
        raise BadTable(f"features: the column holds {written.column}s, not vectors")
    if classes is not None or written.classes is not None:
        return list(classes or written.classes or ())
    highest = max(pq.read_table(written.path, columns=["label"])["label"].to_pylist(), default=-1)
    if not isinstance(highest, int):
        raise BadTable("label: classes must be whole numbers or strings")
    return list(range(highest + 1))
