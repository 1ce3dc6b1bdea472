"""Estimators are converted exactly, or refused with the parameter, the reason and what to change."""

from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import (
    Lasso,
    LogisticRegression,
    LogisticRegressionCV,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import LinearSVC

from lethe.integrations.errors import CannotCertify, CannotRebuild
from lethe.integrations.estimators import convert_estimator
from lethe.integrations.pipelines import (
    Steps,
    build_steps,
    describe_steps,
    prepare_transformers,
    read_classes,
    transform_rows,
)

X = np.random.default_rng(3).normal(size=(40, 3))


def _gradient(estimator: Any, lam: float, y: np.ndarray, loss: str) -> float:
    """Return the norm of the gradient of Lethe's objective at a fitted estimator without an intercept."""
    w = np.atleast_2d(estimator.coef_)
    z = X @ w.T
    if loss == "softmax":
        p = np.exp(z - z.max(1, keepdims=True))
        q = p / p.sum(1, keepdims=True) - np.eye(w.shape[0])[y]
    elif loss == "logistic":
        q = 1 / (1 + np.exp(-z)) - y[:, None]
    else:
        q = z - y[:, None]
    return float(np.linalg.norm(q.T @ X / len(X) + lam * w))


TWO, THREE = (X[:, 0] > 0).astype(int), np.arange(40) % 3


@pytest.mark.parametrize(
    ("estimator", "y", "family"),
    [
        (LogisticRegression(C=0.7, fit_intercept=False, tol=1e-12, max_iter=10_000), TWO, "logistic"),
        (LogisticRegression(C=0.7, fit_intercept=False, tol=1e-12, max_iter=10_000), THREE, "softmax"),
        (RidgeClassifier(alpha=3.0, fit_intercept=False), TWO, "ridge"),
        (Ridge(alpha=3.0, fit_intercept=False), X[:, 1] * 2 + 1, "ridge"),
    ],
)
def test_the_optimum_of_the_estimator_is_that_of_the_converted_objective(
    estimator: Any, y: np.ndarray, family: str
) -> None:
    classes = None if isinstance(estimator, Ridge) else sorted(set(y.tolist()))
    conversion = convert_estimator(estimator, rows=len(X), classes=classes)
    assert (conversion.family, conversion.same_optimum, conversion.bias) == (family, True, False)
    targets = 2 * y - 1 if conversion.signed else y
    assert _gradient(estimator.fit(X, y), conversion.lam, targets, family) < 1e-7


def test_an_sgd_classifier_is_close_to_the_converted_optimum() -> None:
    estimator = SGDClassifier(
        loss="log_loss",
        alpha=0.05,
        fit_intercept=False,
        random_state=0,
        average=True,
        max_iter=5000,
        tol=None,
    )
    conversion = convert_estimator(estimator, rows=len(X), classes=[0, 1])
    assert (conversion.family, conversion.lam) == ("logistic", 0.05)
    assert _gradient(estimator.fit(X, TWO), conversion.lam, TWO, "logistic") < 1e-3


@pytest.mark.parametrize(
    ("estimator", "same"),
    [
        (LogisticRegression(), False),
        (LogisticRegression(solver="liblinear"), True),
        (Ridge(), False),
        (SGDClassifier(loss="log_loss"), False),
        (RidgeClassifier(fit_intercept=False), True),
    ],
)
def test_an_intercept_that_only_lethe_penalises_is_stated(estimator: Any, same: bool) -> None:
    conversion = convert_estimator(estimator, rows=40, classes=None if type(estimator) is Ridge else [0, 1])
    assert conversion.same_optimum is same
    assert ("fit_intercept: scikit-learn does not penalise" in conversion.note) is not same


class Weighted(LogisticRegression):  # type: ignore[misc]  # scikit-learn has no types
    """A subclass, whose objective could be anything."""


REFUSED: list[tuple[Any, int, str]] = [
    (LogisticRegression(l1_ratio=0.5), 2, "l1_ratio: an l1 penalty is not strongly convex"),
    (LogisticRegression(penalty="l1"), 2, "penalty: l1 is not strongly convex"),
    (LogisticRegression(penalty=None), 2, "penalty: a certificate needs a penalty"),
    (LogisticRegression(C=np.inf), 2, "C: a certificate needs a penalty"),
    (LogisticRegression(class_weight="balanced"), 2, "class_weight: every row has the same weight"),
    (LogisticRegression(solver="liblinear"), 3, "solver: liblinear fits one model per class"),
    (LogisticRegression(solver="liblinear", intercept_scaling=9), 2, "intercept_scaling: it changes"),
    (SGDClassifier(), 2, "loss: hinge cannot be certified"),
    (SGDClassifier(loss="log_loss", penalty="elasticnet"), 2, "penalty: elasticnet is not"),
    (SGDClassifier(loss="log_loss"), 3, "SGDClassifier: with three or more classes"),
    (SGDClassifier(loss="log_loss", alpha=0), 2, "alpha: a certificate needs a penalty"),
    (RidgeClassifier(), 3, "register one RidgeClassifier per class"),
    (RidgeClassifier(class_weight="balanced"), 2, "class_weight"),
    (Ridge(positive=True), 0, "positive: Lethe minimises without constraints"),
    (Ridge(alpha=[1.0, 2.0]), 0, "alpha: the penalty must be one number"),
    (Lasso(), 0, "Lasso: an l1 penalty is not strongly convex. Use Ridge"),
    (LinearSVC(), 2, "LinearSVC: the hinge loss has no bounded curvature. Use LogisticRegression"),
    (LogisticRegressionCV(), 2, "chooses C on rows that can be erased"),
    (GridSearchCV(Ridge(), {}), 2, "chooses parameters on rows that can be erased"),
    (RandomForestClassifier(), 2, "RandomForestClassifier: Lethe certifies linear models"),
    (Weighted(), 2, "Weighted: Lethe certifies linear models"),
]


@pytest.mark.parametrize(("estimator", "classes", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_certified_is_refused_by_name(estimator: Any, classes: int, message: str) -> None:
    with pytest.raises(CannotCertify) as caught:
        convert_estimator(estimator, rows=40, classes=list(range(classes)) or None)
    assert message in str(caught.value)


def _halve(rows: np.ndarray) -> np.ndarray:
    return rows / 2


def _centre(rows: np.ndarray) -> Any:
    return rows - rows.mean(0)


def _steps(*transformers: Any) -> Steps:
    return Steps.of(make_pipeline(*transformers, Ridge()))


@pytest.mark.parametrize(
    "transformer", [Normalizer(), PolynomialFeatures(2), FunctionTransformer(_halve), "passthrough"]
)
def test_stateless_transformers_need_no_declaration_and_no_fit(transformer: Any) -> None:
    prepare_transformers(_steps(transformer), {}, X)


@pytest.mark.parametrize("transformer", [StandardScaler(), MinMaxScaler(), PCA(2)])
def test_a_transformer_fitted_on_erasable_rows_is_refused(transformer: Any) -> None:
    name = type(transformer).__name__
    with pytest.raises(CannotCertify, match=rf"{name.lower()} \({name}\): fitted on rows that can be erased"):
        prepare_transformers(_steps(transformer.fit(X)), {}, X)
    public = {name.lower(): "a public census"}
    prepare_transformers(_steps(transformer), public, X)
    with pytest.raises(CannotCertify, match=r"it is not fitted\. Fit it on public rows first"):
        prepare_transformers(_steps(type(transformer)()), public, X)


def test_a_function_that_mixes_rows_is_refused() -> None:
    with pytest.raises(CannotCertify, match="what it makes of a row depends on the other rows"):
        prepare_transformers(_steps(FunctionTransformer(_centre)), {}, X)


def test_a_declaration_about_no_step_is_refused() -> None:
    with pytest.raises(CannotCertify, match=r"there is no step scaler\. The steps are normalizer"):
        prepare_transformers(_steps(Normalizer()), {"scaler": "x"}, X)
    with pytest.raises(CannotCertify, match="There is no pipeline"):
        prepare_transformers(Steps.of(Ridge()), {"scaler": "x"}, X)


def test_a_pipeline_is_built_again_from_json_with_the_same_numbers() -> None:
    public = {"standardscaler": "public", "pca": "public"}
    fitted = make_pipeline(StandardScaler(), PCA(2), PolynomialFeatures(2), Normalizer(), Ridge(alpha=2.5))
    fitted.fit(X, X[:, 0])
    steps = prepare_transformers(Steps.of(fitted), public, X)
    described = describe_steps(steps, ["a", "b"], None)
    again = build_steps(described)
    assert (transform_rows(again, X) == transform_rows(steps, X)).all()
    assert (again.final.alpha, again.final_name) == (2.5, "ridge")
    assert read_classes(described).tolist() == ["a", "b"]


@pytest.mark.parametrize("transformer", [FunctionTransformer(_halve), PCA(3)])
def test_what_json_cannot_hold_must_be_passed_to_load(
    transformer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lethe.integrations.pipelines.MOST_CHARACTERS", 500)
    steps = Steps.of(Pipeline([("step", transformer.fit(X)), ("model", Ridge())]))
    with pytest.raises(CannotRebuild, match="Pass the estimator, with fitted transformers, as estimator="):
        build_steps(describe_steps(steps, None, None))


def test_nothing_but_estimators_of_scikit_learn_is_built_from_a_description() -> None:
    described = describe_steps(Steps.of(Ridge()), None, None)
    for name in ("os.system", "sklearn.utils.Bunch", "sklearn.nothing_here.Ridge", "subprocess.Popen"):
        described["final"]["class"] = name
        with pytest.raises(CannotRebuild):
            build_steps(described)
