"""From a manifest to an objective of the engine, and the tensors a checkpoint of it must hold."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from app.db.manifest import Manifest
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.rows import ArrayRows, Rows

LOSS = {"softmax": "cross-entropy", "logistic": "logistic", "ridge": "half squared error"}


def objective(
    manifest: Manifest, features: npt.NDArray[np.floating], targets: npt.NDArray[np.float64]
) -> LinearObjective:
    """The manifest's objective on these rows; its first pass refuses what has no meaning."""
    return _BUILD[manifest.family](manifest, ArrayRows(features, targets))


def shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    outputs = manifest.classes or 1
    expected: dict[str, tuple[int, ...]] = {"weight": (outputs, manifest.width)}
    if manifest.bias:
        expected["bias"] = (outputs,)
    return expected


def _softmax(manifest: Manifest, rows: Rows) -> Softmax:
    assert manifest.classes is not None
    return Softmax(rows, manifest.classes, manifest.lam, bias=manifest.bias)


def _logistic(manifest: Manifest, rows: Rows) -> Logistic:
    return Logistic(rows, manifest.lam, bias=manifest.bias)


def _ridge(manifest: Manifest, rows: Rows) -> Ridge:
    return Ridge(rows, manifest.lam, bias=manifest.bias)


_BUILD: dict[str, Callable[[Manifest, Rows], LinearObjective]] = {
    "softmax": _softmax,
    "logistic": _logistic,
    "ridge": _ridge,
}
