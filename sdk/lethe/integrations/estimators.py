"""Estimators: how the objective of a scikit-learn estimator becomes one that Lethe can certify.

Lethe minimises mean loss + (λ/2)·‖(w, b)‖² over the weights w and the bias b. scikit-learn writes the same
losses with other constants. With n rows,

| estimator | its objective | λ |
|---|---|---|
| LogisticRegression | C·Σ log loss + ½‖w‖² | 1/(C·n) |
| SGDClassifier(loss="log_loss") | mean log loss + (α/2)‖w‖² | α |
| RidgeClassifier with two classes, on the targets -1 and 1 | Σ (z - y)² + α‖w‖² | α/n |
| Ridge | Σ (z - y)² + α‖w‖² | α/n |

One difference remains: scikit-learn does not penalise the intercept b, and Lethe does, because a certificate
needs λ > 0 on every parameter. Without an intercept the two optima are the same. They are also the same for
LogisticRegression with the solver liblinear, which penalises the intercept just like Lethe. In every other
case `Conversion.same_optimum` is false and `Conversion.note` says why.

Lethe solves to the optimum, up to the policy's target distance. An SGDClassifier stops well before it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from lethe.integrations.errors import CannotCertify

INTERCEPT = (
    "fit_intercept: scikit-learn does not penalise the intercept, but Lethe penalises it like every other "
    "weight, so the optimum differs from that of {name}.fit. To get the same optimum, use fit_intercept=False"
)

_NEAREST = {
    "LogisticRegressionCV": "it chooses C on rows that can be erased. Choose C on public data and use "
    "LogisticRegression",
    "RidgeCV": "it chooses alpha on rows that can be erased. Choose alpha on public data and use Ridge",
    "RidgeClassifierCV": "it chooses alpha on rows that can be erased. Choose alpha on public data and use "
    "RidgeClassifier",
    "GridSearchCV": "it chooses parameters on rows that can be erased. Choose them on public data and pass "
    "the estimator itself",
    "RandomizedSearchCV": "it chooses parameters on rows that can be erased. Choose them on public data and "
    "pass the estimator itself",
    "LinearSVC": "the hinge loss has no bounded curvature. Use LogisticRegression",
    "SVC": "the hinge loss has no bounded curvature. Use LogisticRegression",
    "Perceptron": "its loss has no bounded curvature. Use LogisticRegression",
    "Lasso": "an l1 penalty is not strongly convex. Use Ridge",
    "ElasticNet": "an l1 penalty is not strongly convex. Use Ridge",
    "LinearRegression": "a certificate needs a penalty. Use Ridge with a small alpha",
    "SGDRegressor": "with its default loss and penalty, it approximates Ridge. Use Ridge",
}
_OTHERWISE = (
    "Lethe certifies linear models: LogisticRegression, SGDClassifier(loss='log_loss'), Ridge and "
    "RidgeClassifier. For another model, use its fixed features with one of these"
)


@dataclass(frozen=True)
class Conversion:
    """The objective of an estimator in Lethe's terms.

    `signed` says that the two classes are the targets -1 and 1. `rule` is the formula for λ. If
    `same_optimum` is false, `note` says how the estimator's own optimum differs.
    """

    family: str
    lam: float
    bias: bool
    rule: str
    signed: bool = False
    same_optimum: bool = True
    note: str = ""


def convert_estimator(estimator: Any, *, rows: int, classes: Sequence[Hashable] | None) -> Conversion:
    """Return the objective of an estimator for this many rows. `classes` is None for real targets.

    Raise `CannotCertify` with the parameter, the reason and what to change.
    """
    converters: dict[str, Callable[[Any, int, int], Conversion]] = {
        "LogisticRegression": _logistic_regression,
        "SGDClassifier": _sgd_classifier,
        "RidgeClassifier": _ridge_classifier,
        "Ridge": _ridge,
    }
    name = type(estimator).__name__
    # A subclass may change the objective, so only the classes of scikit-learn itself are accepted.
    if name not in converters or not type(estimator).__module__.startswith("sklearn."):
        raise CannotCertify(f"{name}: {_NEAREST.get(name, _OTHERWISE)}")
    conversion = converters[name](estimator, rows, 0 if classes is None else len(classes))
    if conversion.bias and conversion.same_optimum:
        if name == "LogisticRegression" and estimator.solver == "liblinear":
            return conversion
        note = INTERCEPT.format(name=name)
        return Conversion(**{**vars(conversion), "same_optimum": False, "note": note})
    return conversion


def is_classifier(estimator: Any) -> bool:
    """Return whether the estimator predicts classes."""
    return type(estimator).__name__ != "Ridge"


def _logistic_regression(estimator: Any, rows: int, classes: int) -> Conversion:
    penalty = getattr(estimator, "penalty", "deprecated")
    if penalty not in ("l2", "deprecated"):
        _refuse_penalty(penalty)
    if getattr(estimator, "l1_ratio", None) not in (None, 0):
        _refuse("l1_ratio", "an l1 penalty is not strongly convex", "set l1_ratio=0")
    _refuse_weights(estimator)
    strength = _positive(estimator, "C")
    if estimator.solver == "liblinear":
        if classes > 2:
            _refuse("solver", "liblinear fits one model per class", "use the solver lbfgs")
        if estimator.fit_intercept and estimator.intercept_scaling != 1:
            _refuse("intercept_scaling", "it changes the penalty of the intercept", "set intercept_scaling=1")
    if getattr(estimator, "multi_class", "deprecated") == "ovr" and classes > 2:
        _refuse("multi_class", "ovr fits one model per class", "use multi_class='multinomial'")
    family = "logistic" if classes == 2 else "softmax"
    rule = f"1/(C·n) with C = {strength:g} and n rows at registration"
    return Conversion(family, 1 / (strength * rows), bool(estimator.fit_intercept), rule)


def _sgd_classifier(estimator: Any, rows: int, classes: int) -> Conversion:  # noqa: ARG001
    if estimator.loss != "log_loss":
        _refuse("loss", f"{estimator.loss} cannot be certified", "use loss='log_loss'")
    if estimator.penalty != "l2":
        _refuse_penalty(estimator.penalty)
    _refuse_weights(estimator)
    if classes > 2:
        _refuse(
            "SGDClassifier",
            "with three or more classes it fits one model per class",
            "use LogisticRegression",
        )
    alpha = _positive(estimator, "alpha")
    return Conversion("logistic", alpha, bool(estimator.fit_intercept), f"α = {alpha:g}")


def _ridge_classifier(estimator: Any, rows: int, classes: int) -> Conversion:
    if classes > 2:
        _refuse(
            "RidgeClassifier",
            f"with {classes} classes it fits {classes} regressions, and a model in Lethe has one",
            "use LogisticRegression, or register one RidgeClassifier per class; each of these has its own "
            "noise and its own certificate",
        )
    _refuse_weights(estimator)
    conversion = _ridge(estimator, rows, 0)
    return Conversion(**{**vars(conversion), "signed": True})


def _ridge(estimator: Any, rows: int, classes: int) -> Conversion:  # noqa: ARG001
    if estimator.positive:
        _refuse("positive", "Lethe minimises without constraints", "set positive=False")
    alpha = _positive(estimator, "alpha")
    rule = f"α/n with α = {alpha:g} and n rows at registration"
    return Conversion("ridge", alpha / rows, bool(estimator.fit_intercept), rule)


def _positive(estimator: Any, name: str) -> float:
    """Return a parameter that must be one positive number."""
    value = getattr(estimator, name)
    try:
        number = float(value)
    except (TypeError, ValueError):
        _refuse(name, "the penalty must be one number for all weights", "pass a single number")
    if not 0 < number < float("inf"):
        _refuse(name, "a certificate needs a penalty", f"choose a positive, finite {name}")
    return number


def _refuse_penalty(penalty: Any) -> None:
    if penalty is None:
        _refuse("penalty", "a certificate needs a penalty", "use penalty='l2', with a large C for a weak one")
    _refuse(
        "penalty", f"{penalty} is not strongly convex, so no distance can be proved", "use the l2 penalty"
    )


def _refuse_weights(estimator: Any) -> None:
    if estimator.class_weight is not None:
        _refuse("class_weight", "every row has the same weight in Lethe", "set class_weight=None")


def _refuse(parameter: str, reason: str, change: str) -> Any:
    raise CannotCertify(f"{parameter}: {reason}. To register this model, {change}")
