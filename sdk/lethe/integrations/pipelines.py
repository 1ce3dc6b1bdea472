"""Pipelines: which transformers may stand before a certified model, and how they are written as JSON.

A transformer that was fitted on erasable rows is a function of these rows that no erasure undoes. So every
step must be stateless, or its owner must declare that it was fitted on public data.

What is needed to build an estimator again is stored as JSON in the annotations of the manifest: class names,
parameters, and the numbers of fitted transformers. Nothing is pickled. Only classes of scikit-learn itself
are built from it.
"""

import base64
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lethe.integrations.errors import CannotCertify, CannotRebuild

ANNOTATION = "sklearn"
MOST_CHARACTERS = 200_000
_KNOWN_STATELESS = frozenset({"HashingVectorizer", "PolynomialFeatures"})
_SAMPLE = 8


class _NotPlain(Exception):
    """A value cannot be written as JSON and read back."""


@dataclass(frozen=True)
class Steps:
    """The transformers of a pipeline by name, and its last step."""

    transformers: tuple[tuple[str, Any], ...]
    final: Any
    final_name: str | None
    """The name of the last step, or None if there is no pipeline."""

    @classmethod
    def of(cls, estimator: Any) -> "Steps":
        """Split a pipeline. Any other estimator is its own last step."""
        if type(estimator).__name__ != "Pipeline":
            return cls((), estimator, None)
        named = [(name, step) for name, step in estimator.steps[:-1] if step not in (None, "passthrough")]
        final_name, final = estimator.steps[-1]
        return cls(tuple(named), final, final_name)


def prepare_transformers(steps: Steps, public: Mapping[str, str], X: Any) -> Steps:
    """Return the steps with transformers that can transform, or raise `CannotCertify`.

    `public` maps the names of steps that were fitted on public data to where that data comes from.
    """
    names = [name for name, _ in steps.transformers]
    if unknown := sorted(set(public) - set(names)):
        known = f"The steps are {', '.join(names)}" if names else "There is no pipeline"
        raise CannotCertify(f"public_transformers: there is no step {unknown[0]}. {known}")
    prepared, rows = [], X
    for name, transformer in steps.transformers:
        ready = _prepare(name, transformer, name in public, rows)
        transformed = ready.transform(rows)
        _check_rows_stay_apart(name, ready, rows, transformed)
        prepared.append((name, ready))
        rows = transformed
    return Steps(tuple(prepared), steps.final, steps.final_name)


def transform_rows(steps: Steps, X: Any) -> Any:
    """Return what the last step is fitted on."""
    for _, transformer in steps.transformers:
        X = transformer.transform(X)
    return X


def is_stateless(transformer: Any) -> bool:
    """Return whether fitting a transformer reads nothing of the rows but the number of columns."""
    if not type(transformer).__module__.startswith("sklearn."):
        return False
    if type(transformer).__name__ in _KNOWN_STATELESS:
        return True
    tags = getattr(transformer, "__sklearn_tags__", None)
    return tags is not None and not tags().requires_fit


def _prepare(name: str, transformer: Any, public: bool, X: Any) -> Any:
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    kind = type(transformer).__name__
    if not public and not is_stateless(transformer):
        raise CannotCertify(
            f"{name} ({kind}): fitted on rows that can be erased, it would keep what it learned from them. "
            f"Fit it on public rows and pass public_transformers={{'{name}': 'where they come from'}}, or "
            "replace it with a fixed scaling, for example in a FunctionTransformer"
        )
    if not public:
        return clone(transformer).fit(X[:1])
    try:
        check_is_fitted(transformer)
    except NotFittedError:
        raise CannotCertify(f"{name} ({kind}): it is not fitted. Fit it on public rows first") from None
    return transformer


def _check_rows_stay_apart(name: str, transformer: Any, X: Any, transformed: Any) -> None:
    """Raise unless each sample row, transformed alone, gives what it gives among all rows."""
    import numpy as np

    count = X.shape[0] if hasattr(X, "shape") else len(X)
    for row in range(0, count, max(1, count // _SAMPLE)):
        alone, among = transformer.transform(_row(X, row)), _row(transformed, row)
        if not np.allclose(_dense(alone), _dense(among), rtol=1e-9, atol=1e-12, equal_nan=True):
            raise CannotCertify(
                f"{name} ({type(transformer).__name__}): what it makes of a row depends on the other rows, "
                "so erasing a row would not undo its effect. Use fixed constants instead"
            )


def _row(X: Any, row: int) -> Any:
    """Return one row as a table or matrix with one row."""
    return X.iloc[row : row + 1] if hasattr(X, "iloc") else X[row : row + 1]


def _dense(matrix: Any) -> Any:
    import numpy as np

    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)


# -- JSON ---------------------------------------------------------------------------------------------------


def describe_steps(
    steps: Steps, classes: Sequence[Hashable] | None, feature_names: Sequence[str] | None
) -> dict[str, Any]:
    """Return what is needed to build the estimator again.

    Steps that cannot be written as JSON, or are too large, are left out. `load` then asks for them.
    """
    described: dict[str, Any] = {
        "final_name": steps.final_name,
        "classes": None,
        "final": None,
        "steps": None,
    }
    described["names"] = [type(steps.final).__name__, *(name for name, _ in steps.transformers)]
    described["feature_names"] = None if feature_names is None else list(feature_names)
    try:
        described["classes"] = None if classes is None else _encode(list(classes))
        described["final"] = _describe(steps.final, with_state=False)
        stored = [
            {"name": name} | _describe(transformer, with_state=True)
            for name, transformer in steps.transformers
        ]
    except _NotPlain:
        return described
    if len(str(stored)) <= MOST_CHARACTERS:
        described["steps"] = stored
    return described


def read_description(text: str) -> dict[str, Any]:
    """Read what `describe_steps` returned from JSON, or raise `CannotRebuild` if it is something else."""
    try:
        described = json.loads(text)
    except ValueError:
        described = None
    fields = {"classes", "final", "steps", "final_name", "names", "feature_names"}
    if not isinstance(described, dict) or described.keys() != fields:
        raise CannotRebuild(
            f"the annotation {ANNOTATION} of the model does not describe an estimator. Pass estimator="
        )
    return described


def build_steps(described: Mapping[str, Any]) -> Steps:
    """Build the steps from their description, or raise `CannotRebuild` if it is incomplete."""
    if described["final"] is None or described["steps"] is None:
        raise CannotRebuild(
            "a step of the registered estimator could not be stored as JSON. Pass the estimator, with fitted "
            "transformers, as estimator="
        )
    transformers = tuple((entry["name"], _build(entry)) for entry in described["steps"])
    return Steps(transformers, _build(described["final"]), described["final_name"])


def read_classes(described: Mapping[str, Any]) -> Any:
    """Return the class list as a NumPy array, or None for real targets."""
    import numpy as np

    return None if described["classes"] is None else np.array(_decode(described["classes"]))


def _describe(step: Any, *, with_state: bool) -> dict[str, Any]:
    if not type(step).__module__.startswith("sklearn."):
        raise _NotPlain
    params = step.get_params(deep=False)
    state = {name: value for name, value in vars(step).items() if name not in params} if with_state else {}
    return {
        "class": f"{type(step).__module__}.{type(step).__name__}",
        "params": {name: _encode(value) for name, value in params.items()},
        "state": {name: _encode(value) for name, value in state.items()},
    }


def _build(entry: Mapping[str, Any]) -> Any:
    from sklearn.base import BaseEstimator

    module, _, name = str(entry["class"]).rpartition(".")
    try:
        kind = getattr(import_module(module), name, None) if module.startswith("sklearn.") else None
    except ImportError:
        kind = None
    if not (isinstance(kind, type) and issubclass(kind, BaseEstimator)):
        raise CannotRebuild(f"{entry['class']} is not an estimator of the installed scikit-learn")
    known = kind().get_params(deep=False)
    step = kind(**{name: _decode(value) for name, value in entry["params"].items() if name in known})
    for attribute, value in entry["state"].items():
        setattr(step, attribute, _decode(value))
    return step


def _encode(value: Any) -> Any:
    """Return a value as JSON. Arrays keep their exact bytes."""
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_encode(entry) for entry in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.ndarray) and value.ndim == 1 and all(isinstance(entry, str) for entry in value):
        return {"strings": [str(entry) for entry in value]}
    if isinstance(value, type) and value.__module__ == "numpy" and issubclass(value, np.generic):
        return {"dtype": np.dtype(value).str}
    raise _NotPlain


def _decode(value: Any) -> Any:
    import numpy as np

    match value:
        case {"array": data, "dtype": dtype, "shape": shape}:
            if np.dtype(dtype).kind not in "biuf":
                raise CannotRebuild("the description of the estimator is damaged")
            return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
        case {"dtype": dtype}:
            return np.dtype(dtype).type
        case {"strings": strings}:
            return np.array(strings, object)
        case {"list": entries}:
            return [_decode(entry) for entry in entries]
        case {"tuple": entries}:
            return tuple(_decode(entry) for entry in entries)
    return value
