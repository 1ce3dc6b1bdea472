"""scikit-learn: registers an estimator as a model, and loads certified weights back into it.

    from lethe.integrations.sklearn import load, register

    register(client, "clinic", LogisticRegression(C=1.0), X, y, subjects)
    ...                                # people are erased
    estimator = load(client, "clinic")

The service trains the model, so the estimator need not be fitted. `lethe.integrations.estimators` explains
how its parameters become Lethe's objective, and why an intercept makes a difference.
"""

import json
import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lethe.certificate.keys import KeySet
from lethe.client.responses import Model
from lethe.integrations.errors import BadTable, CannotCertify, CannotRebuild, require_libraries
from lethe.integrations.estimators import Conversion, convert_estimator, is_classifier
from lethe.integrations.noise_effect import (
    HOLDOUT,
    NoiseTooLarge,
    NoiseUnknown,
    PublicRows,
    declared_rows,
    rows_like,
    warn_about_noise,
)
from lethe.integrations.pipelines import (
    ANNOTATION,
    Steps,
    build_steps,
    describe_steps,
    prepare_transformers,
    read_classes,
    read_description,
    transform_rows,
)
from lethe.integrations.registration import register_files
from lethe.integrations.released_weights import ReleasedWeights, fetch_weights
from lethe.integrations.tables import split_holdout, write_parquet

if TYPE_CHECKING:
    from lethe.client.api import Lethe

__all__ = ["NoiseTooLarge", "NoiseUnknown", "ObjectiveDiffers", "load", "register"]
_PURPOSE = "The integration with scikit-learn"
_SIGNS = (-1.0, 1.0)
_MADE_UP_ROWS = 20  # per class; enough for early stopping


class ObjectiveDiffers(UserWarning):
    """The certified optimum is not that of the estimator's own `fit`, for the reason in the message."""


def register(
    client: "Lethe",
    name: str,
    estimator: Any,
    X: Any,
    y: Any,
    subjects: Any,
    *,
    holdout: tuple[Any, ...] | None = None,
    sample_weight: None = None,
    public_transformers: Mapping[str, str] | None = None,
    classes: Sequence[Hashable] | None = None,
    lam: float | None = None,
    row_length: float | None = None,
    policy: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
    wait: bool = True,
    timeout: float | None = None,
) -> Model:
    """Register an estimator, or a pipeline that ends in one, as the model `name`.

    `X` and `y` are the training rows, and `subjects` says for each row whose it is. `holdout` is a tuple of
    further rows and labels for evaluation, optionally with their subjects.

    The estimator is a `LogisticRegression`, `SGDClassifier(loss="log_loss")`, `Ridge`, or a `RidgeClassifier`
    with two classes. Raise `CannotCertify` if a parameter rules out a certificate. Warn with
    `ObjectiveDiffers` if the certified optimum is not that of the estimator's own `fit`, and with
    `NoiseTooLarge` if the noise of a release will probably spoil a classifier. The latter judges by λ, by the
    policy, and by the length of feature vectors: `row_length` if you know it without looking at rows that can
    be erased, or else that of a holdout without subjects. If neither is given and the policy does not choose
    a target distance, it warns with `NoiseUnknown`.

    Transformers of a pipeline run here, and the service stores what they return. Each one must be stateless,
    or `public_transformers` must say for its step on which public data it was fitted. These declarations are
    printed on certificates.

    λ follows from the estimator's penalty. For LogisticRegression and the ridge estimators it depends on the
    number of rows, so certificates, which state λ, reveal this number. Pass `lam` to fix λ beforehand
    instead. It stays as it is when rows are erased. Choose C or alpha without looking at rows that can be
    erased; otherwise the assurance on certificates is void.

    `sample_weight` is not supported. `classes` lists all classes, sorted, in case some have no row. `policy`
    and `origins` are those of the manifest. The class list and what is needed to build the estimator again
    are stored as JSON in the manifest's annotations, which are not printed on certificates. If the service
    rejects the model, call `register` again under the same name.
    """
    require_libraries(_PURPOSE, "sklearn", "pyarrow", "numpy")
    if sample_weight is not None:
        raise CannotCertify("sample_weight: every row has the same weight in Lethe. Leave it out")
    steps, declared = Steps.of(estimator), dict(public_transformers or {})
    labels = _check_labels(y, steps.final)
    known = _class_list(labels, classes) if is_classifier(steps.final) else None
    conversion = convert_estimator(steps.final, rows=len(labels), classes=known)
    steps = prepare_transformers(steps, declared, X)
    features = _matrix(transform_rows(steps, X))
    manifest = _manifest(steps, conversion, known, features, _column_names(X)) | {
        "lambda": conversion.lam if lam is None else lam,
        "origins": _origins(steps, declared, conversion, lam) | dict(origins or {}),
        "policy": dict(policy or {}),
    }
    if not conversion.same_optimum:
        warnings.warn(conversion.note, ObjectiveDiffers, stacklevel=2)
    with TemporaryDirectory(prefix="lethe-") as folder:
        data = _write(Path(folder) / "data", features, labels, subjects, known, conversion)
        held = None if holdout is None else _write_holdout(Path(folder), steps, holdout, known, conversion)
        warn_about_noise(manifest, _public_rows(steps, holdout, row_length), signed=conversion.signed)
        return register_files(client, name, manifest, data=data, holdout=held, wait=wait, timeout=timeout)


def load(
    client: "Lethe",
    name: str,
    *,
    estimator: Any = None,
    version: int | None = None,
    keys: KeySet | bytes | None = None,
    certified: bool = True,
) -> Any:
    """Return a fitted estimator of the registered class, or pipeline, with the certified weights of `name`.

    The certificate and the weights are verified first. Pass the issuer's `keys` if you have them from another
    source. Without them, the keys that come with the certificate are used.

    The estimator's class, its parameters, the class list and the transformers come from the manifest's
    annotations, which the certificate does not cover. If you do not trust the service with them, or if a
    transformer could not be stored as JSON, pass the registered `estimator` with fitted transformers. It is
    copied, not changed. If it is fitted itself, its class list is used as well.

    `version` chooses an earlier version. Version 0, the model as registered, has no certificate. To load it,
    pass `certified=False`.
    """
    require_libraries(_PURPOSE, "sklearn", "numpy")
    released = fetch_weights(client, name, version=version, keys=keys, certified=certified)
    described = _description(released, name)
    steps = build_steps(described) if estimator is None else _copy_steps(estimator, described)
    classes = getattr(steps.final, "classes_", None) if estimator is not None else None
    if classes is None and is_classifier(steps.final):
        classes = read_classes(described)
    final = _fitted(steps.final, released, classes)
    if described["feature_names"] is not None and not steps.transformers:
        final.feature_names_in_ = _strings(described["feature_names"])
    if steps.final_name is None:
        return final
    from sklearn.pipeline import Pipeline

    return Pipeline([*steps.transformers, (steps.final_name, final)])


# -- registration -------------------------------------------------------------------------------------------


def _manifest(
    steps: Steps,
    conversion: Conversion,
    classes: list[Any] | None,
    features: Any,
    names: list[str] | None,
) -> dict[str, Any]:
    """Return what follows from the estimator and its features."""
    manifest = {
        "family": conversion.family,
        "width": int(features.shape[1]),
        "bias": conversion.bias,
        "annotations": {ANNOTATION: json.dumps(describe_steps(steps, classes, names))},
    }
    if conversion.family == "softmax":
        assert classes is not None
        manifest["classes"] = len(classes)
    return manifest


def _column_names(X: Any) -> list[str] | None:
    """Return the names of the columns of a data frame. An array has none."""
    return [str(column) for column in X.columns] if hasattr(X, "columns") else None


def _check_labels(y: Any, final: Any) -> Any:
    """Return the labels as a one-dimensional array without missing values."""
    import numpy as np

    labels = np.asarray(y)
    if labels.ndim != 1:
        raise CannotCertify(
            f"y: it has {labels.ndim} dimensions, and a model in Lethe has one label per row. Register one "
            "model per target"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.flatnonzero(~np.isfinite(labels))[0])
        raise BadTable(f"y, row {row}: the label is missing, NaN or infinite")
    if is_classifier(final) and labels.dtype.kind == "f" and (labels != np.round(labels)).any():
        raise CannotCertify(
            f"y: its values are real numbers, but {type(final).__name__} predicts classes. Use Ridge"
        )
    return labels


def _class_list(labels: Any, classes: Sequence[Hashable] | None) -> list[Any]:
    """Return the sorted classes, as scikit-learn orders them."""
    import numpy as np

    present = np.unique(labels)
    known = present if classes is None else np.asarray(list(classes))
    if len(known) < 2:
        raise CannotCertify("y: all labels are the same, and a classifier needs two classes. Pass classes=")
    if (np.sort(known) != known).any():
        raise CannotCertify("classes: scikit-learn keeps classes sorted. Sort the list")
    return list(known.tolist())


def _matrix(X: Any) -> Any:
    """Return the rows as a dense two-dimensional array of floats."""
    import numpy as np

    dense = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    if dense.ndim != 2:
        raise BadTable(f"X has {dense.ndim} dimensions, but rows and features are two")
    if dense.dtype.kind not in "biuf":
        raise BadTable(
            f"X has values of the type {dense.dtype}, but features are numbers. Convert its columns, or put "
            "a stateless transformer before the estimator"
        )
    return dense if dense.dtype.kind == "f" else dense.astype(np.float64)


def _write(
    to: Path, features: Any, labels: Any, subjects: Any, known: list[Any] | None, conversion: Conversion
) -> Path:
    """Write rows as Parquet. Classes become 0, 1, … or, for a ridge on two classes, -1 and 1."""
    import numpy as np

    given = labels
    if conversion.signed:
        assert known is not None
        unseen = np.flatnonzero(~np.isin(labels, known))
        if len(unseen):
            raise BadTable(f"y, row {unseen[0]}: the label is not one of the 2 classes")
        given = np.where(labels == known[1], _SIGNS[1], _SIGNS[0])
    listed = known if known is not None and not conversion.signed else None
    real = labels.astype(np.float64) if known is None else given
    return write_parquet(features, to, subject=subjects, label=real, classes=listed).path


def _write_holdout(
    folder: Path, steps: Steps, holdout: tuple[Any, ...], known: list[Any] | None, conversion: Conversion
) -> Path:
    X, y, subjects = split_holdout(holdout)
    try:
        features, labels = _matrix(transform_rows(steps, X)), _check_labels(y, steps.final)
        return _write(folder / "holdout", features, labels, subjects, known, conversion)
    except BadTable as problem:
        raise BadTable(f"holdout: {problem}") from None


def _public_rows(
    steps: Steps, holdout: tuple[Any, ...] | None, row_length: float | None
) -> PublicRows | None:
    """Return how long feature vectors are, if that is known from rows without subjects."""
    if row_length is not None:
        return declared_rows(row_length)
    if holdout is None or (len(holdout) == 3 and holdout[2] is not None):
        return None
    return rows_like(_matrix(transform_rows(steps, holdout[0])), HOLDOUT)


def _origins(
    steps: Steps, public: Mapping[str, str], conversion: Conversion, lam: float | None
) -> dict[str, str]:
    """Declare where features and constants come from, as far as it is known here."""
    parts = [
        f"{type(step).__name__} fitted on {public[name]}" if name in public else type(step).__name__
        for name, step in steps.transformers
    ]
    features = ", then ".join(["the owner's columns", *parts])
    rule = f"λ = {conversion.rule}" if lam is None else "λ set by the owner"
    declared = {"features": features[:480], "constants": f"{rule}; other figures set by the owner"}
    if any(type(step).__name__ == "StandardScaler" and name in public for name, step in steps.transformers):
        declared["standardisation"] = "public data"
    return declared


# -- loading ------------------------------------------------------------------------------------------------


def _description(released: ReleasedWeights, name: str) -> dict[str, Any]:
    text = released.model.manifest.annotations.get(ANNOTATION)
    if text is None:
        raise CannotRebuild(f"{name} was not registered from scikit-learn, so there is no estimator to load")
    return read_description(text)


def _copy_steps(estimator: Any, described: Mapping[str, Any]) -> Steps:
    """Return the steps of a copy of the caller's estimator, which must be like the registered one."""
    from copy import deepcopy

    steps = Steps.of(deepcopy(estimator))
    names = [type(steps.final).__name__, *(name for name, _ in steps.transformers)]
    if names != described["names"]:
        registered = ", ".join(described["names"])
        raise CannotRebuild(f"estimator: its steps are {', '.join(names)}, but {registered} were registered")
    return steps


def _fitted(final: Any, released: ReleasedWeights, classes: Any) -> Any:
    """Give an estimator the released weights.

    It is first fitted to made-up rows with one feature. So it has the shapes and the further attributes that
    the installed version of scikit-learn gives a fitted estimator. Then all that was fitted is replaced.
    """
    import numpy as np

    weight = released.array("weight").astype(np.float64)
    bias = np.zeros(len(weight))
    if "bias" in released.tensors:
        bias = released.array("bias").astype(np.float64)
    known = np.zeros(2) if classes is None else classes
    targets = np.repeat(known, _MADE_UP_ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        final.fit(np.zeros((len(targets), 1)), targets)
    final.coef_ = weight.reshape(*final.coef_.shape[:-1], weight.shape[1])
    final.intercept_ = (
        bias.reshape(np.shape(final.intercept_)) if np.shape(final.intercept_) else float(bias[0])
    )
    final.n_features_in_ = weight.shape[1]
    return final


def _strings(names: Sequence[str]) -> Any:
    import numpy as np

    return np.array(names, object)
