"""scikit-learn estimators go through the service and come back with certified weights, on real data."""

import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_classification
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from lethe import Conflict, Lethe, ModelRejected, NotVerified, ReleaseUnavailable
from lethe.certificate.weights_file import read_tensors
from lethe.integrations.errors import BadTable, CannotCertify, CannotRebuild
from lethe.integrations.sklearn import NoiseTooLarge, NoiseUnknown, ObjectiveDiffers, load, register
from tests.integration.client_world import JOB_SECONDS, World, world

__all__ = ["world"]
POLICY = {"target_distance": 1e-8, "batch_subjects": 1000, "min_batch_subjects": 1}
TIGHT: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-14, "max_iter": 1000}


@pytest.fixture
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as client:
        yield client


def _breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X / 10 ** np.ceil(np.log10(load_breast_cancer().data[0] + 1e-3)), y  # constants of one public row


def _wine() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_wine(return_X_y=True)
    return X / [10, 10, 10, 10, 100, 10, 10, 1, 10, 10, 1, 10, 1000], y


def _digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def _covertype_like() -> tuple[np.ndarray, np.ndarray]:
    """54 columns of which most are indicators, and 7 classes of uneven size."""
    X, y = make_classification(
        3000,
        54,
        n_informative=12,
        n_classes=7,
        weights=[0.36, 0.49, 0.06, 0.01, 0.02, 0.03, 0.03],
        random_state=4,
    )
    X[:, 10:] = X[:, 10:] > 1
    return X / 4, y


def _people(rows: int) -> list[str]:
    return [f"p{i // 2}" for i in range(rows)]


def _with_ones(X: np.ndarray) -> np.ndarray:
    return np.column_stack([X, np.ones(len(X))])


def _erase(client: Lethe, model: str, *people: str) -> None:
    erasure = client.erasures.create(people, models=[model])
    client.models.flush(model, force=True)
    assert client.erasures.wait(erasure.id, timeout=JOB_SECONDS).state == "completed"


DATASETS = {
    "breast-cancer": (_breast_cancer, 2.0),
    "wine": (_wine, 0.5),
    "digits": (_digits, 0.1),
    "covertype-like": (_covertype_like, 0.05),
}


@pytest.mark.parametrize("dataset", DATASETS)
def test_version_0_is_the_optimum_of_scikit_learn_with_a_penalised_intercept(
    lethe: Lethe, dataset: str
) -> None:
    """Lethe's bias is a constant feature, so scikit-learn gets a column of ones instead of an intercept."""
    make, strength = DATASETS[dataset]
    X, y = make()
    with pytest.warns(ObjectiveDiffers, match="does not penalise the intercept"):
        register(lethe, dataset, LogisticRegression(C=strength), X, y, _people(len(X)), policy=POLICY)
    ours = load(lethe, dataset, certified=False)
    theirs = LogisticRegression(C=strength, fit_intercept=False, **TIGHT).fit(_with_ones(X), y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_[:, :-1], atol=1e-7)
    np.testing.assert_allclose(ours.intercept_, theirs.coef_[:, -1], atol=1e-7)
    assert (ours.predict(X) == theirs.predict(_with_ones(X))).all()
    assert ours.classes_.tolist() == theirs.classes_.tolist()


def test_version_0_is_the_optimum_of_scikit_learn_without_an_intercept(lethe: Lethe) -> None:
    """No warning is raised here, because the objectives are equal. Warnings are errors in tests."""
    X, y = _wine()
    plain = LogisticRegression(C=0.5, fit_intercept=False, **TIGHT)
    register(lethe, "no-intercept", plain, X, y, _people(len(X)), policy=POLICY)
    ours = load(lethe, "no-intercept", certified=False)
    np.testing.assert_allclose(ours.coef_, plain.fit(X, y).coef_, atol=1e-7)
    assert ours.get_params() == plain.get_params()

    X, y = _breast_cancer()
    exact = LogisticRegression(solver="liblinear", C=2.0, tol=1e-12, max_iter=10_000)
    register(lethe, "liblinear", exact, X, y, _people(len(X)), policy=POLICY)
    ours = load(lethe, "liblinear", certified=False)
    np.testing.assert_allclose(ours.coef_, exact.fit(X, y).coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, exact.intercept_, atol=1e-5)


def test_ridge_and_sgd_have_the_optimum_of_their_objectives(lethe: Lethe) -> None:
    X, y = load_diabetes(return_X_y=True)
    register(
        lethe, "ridge", Ridge(alpha=0.3, fit_intercept=False), X * 10, y / 100, _people(len(X)), policy=POLICY
    )
    ours, theirs = load(lethe, "ridge", certified=False), Ridge(alpha=0.3, fit_intercept=False)
    np.testing.assert_allclose(ours.coef_, theirs.fit(X * 10, y / 100).coef_, atol=1e-7)
    assert ours.coef_.shape == theirs.coef_.shape
    assert ours.intercept_ == 0.0

    X, y = _breast_cancer()
    named = np.array(["malignant", "benign"])[y]
    ridge = RidgeClassifier(alpha=0.3, fit_intercept=False)
    register(lethe, "ridge-classes", ridge, X, named, _people(len(X)), policy=POLICY)
    ours = load(lethe, "ridge-classes", certified=False)
    np.testing.assert_allclose(ours.coef_, ridge.fit(X, named).coef_, atol=1e-6)
    assert (ours.predict(X) == ridge.predict(X)).all()

    sgd = SGDClassifier(loss="log_loss", alpha=0.001, fit_intercept=False)
    register(lethe, "sgd", sgd, X, named, _people(len(X)), policy=POLICY)
    ours = load(lethe, "sgd", certified=False)
    theirs = LogisticRegression(C=1 / (0.001 * len(X)), fit_intercept=False, **TIGHT).fit(X, named)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-7)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


def test_certified_predictions_equal_a_computation_by_hand(lethe: Lethe, tmp_path: Path) -> None:
    X, y = _wine()
    names = np.array(["barolo", "grignolino", "barbera"])
    frame = pd.DataFrame(X, columns=load_wine().feature_names)
    with pytest.warns(ObjectiveDiffers):
        register(
            lethe, "by-hand", LogisticRegression(), frame, names[y], _people(len(X)),
            holdout=(frame[:40], names[y[:40]]), policy=POLICY | {"target_distance": 1e-3},
        )  # fmt: skip
    with pytest.raises(ReleaseUnavailable, match=r"has no certificate.*pass certified=False"):
        load(lethe, "by-hand")
    _erase(lethe, "by-hand", "p3", "p7")
    estimator = load(lethe, "by-hand", keys=lethe.log.keys())

    _, tensors = read_tensors(lethe.versions.download("by-hand", tmp_path / "w").read_bytes())
    kind = {"F32": np.float32, "F64": np.float64}[tensors["weight"].dtype]
    weight = np.frombuffer(tensors["weight"].data, kind).reshape(3, 13).astype(np.float64)
    z = X @ weight.T + np.frombuffer(tensors["bias"].data, kind)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(estimator.decision_function(frame)[:, [1, 2, 0]], z[:, [1, 2, 0]], atol=1e-12)
    np.testing.assert_allclose(estimator.predict_proba(frame), p, atol=1e-12)
    assert (estimator.predict(frame) == np.sort(names)[p.argmax(1)]).all()
    assert estimator.feature_names_in_.tolist() == list(frame.columns)


def test_a_pipeline_comes_back_with_its_transformers(lethe: Lethe) -> None:
    X, y = _breast_cancer()
    public, private = X[:100], X[100:]
    final = LogisticRegression(fit_intercept=False)
    pipeline = make_pipeline(StandardScaler().fit(public), Normalizer(), final)
    people, declared = _people(len(private)), {"standardscaler": "the first 100 rows, which are public"}
    with pytest.raises(CannotCertify, match="standardscaler"):
        register(lethe, "pipe", pipeline, private, y[100:], people)
    model = register(
        lethe, "pipe", pipeline, private, y[100:], people, public_transformers=declared, policy=POLICY
    )
    assert model.manifest.origins.standardisation == "public data"
    assert "StandardScaler fitted on the first 100 rows" in model.manifest.origins.features
    loaded = load(lethe, "pipe", certified=False)
    features = pipeline[:-1].transform(private)
    theirs = LogisticRegression(fit_intercept=False, **TIGHT).fit(features, y[100:])
    np.testing.assert_allclose(loaded.decision_function(private), features @ theirs.coef_[0], atol=1e-5)
    assert [name for name, _ in loaded.steps] == [name for name, _ in pipeline.steps]


def test_tables_and_texts_go_through_a_pipeline(lethe: Lethe) -> None:
    X, y = _wine()
    frame = pd.DataFrame(X, columns=load_wine().feature_names)
    scaled = make_pipeline(StandardScaler().fit(frame[::2]), LogisticRegression(fit_intercept=False))
    declared = {"standardscaler": "every other bottle, which is public"}
    register(lethe, "frame", scaled, frame, y, _people(len(X)), public_transformers=declared, policy=POLICY)
    assert load(lethe, "frame", certified=False).score(frame, y) > 0.9

    letters = [f"{'please' if i % 2 else 'never'} write to number {i % 7}" for i in range(60)]
    texts = make_pipeline(HashingVectorizer(n_features=32), LogisticRegression(fit_intercept=False))
    register(lethe, "texts", texts, letters, [i % 2 for i in range(60)], _people(60), policy=POLICY)
    loaded = load(lethe, "texts", certified=False)
    assert loaded.predict(["please write", "never write"]).tolist() == [1, 0]


def test_a_damaged_description_is_refused_and_the_estimator_can_be_passed(lethe: Lethe) -> None:
    X, y = _wine()
    plain = LogisticRegression(fit_intercept=False)
    register(lethe, "damaged", plain, X, y, _people(len(X)), policy=POLICY)
    for text in ("", "[]", "{}"):
        lethe.models.patch("damaged", {"annotations": {"sklearn": text}})
        with pytest.raises(CannotRebuild, match="does not describe an estimator"):
            load(lethe, "damaged", certified=False)


def _scale(rows: np.ndarray) -> np.ndarray:
    return rows / 16


def test_a_transformer_that_json_cannot_hold_is_passed_to_load(lethe: Lethe) -> None:
    X, y = load_digits(return_X_y=True)
    pipeline = make_pipeline(FunctionTransformer(_scale), LogisticRegression(fit_intercept=False))
    register(lethe, "function", pipeline, X, y, _people(len(X)), policy=POLICY | {"target_distance": 1e-3})
    with pytest.raises(CannotRebuild, match="Pass the estimator, with fitted transformers"):
        load(lethe, "function", certified=False)
    loaded = load(lethe, "function", certified=False, estimator=pipeline)
    assert loaded.score(X, y) > 0.9
    assert not hasattr(pipeline[-1], "coef_")
    with pytest.raises(CannotRebuild, match="but LogisticRegression, functiontransformer were registered"):
        load(lethe, "function", certified=False, estimator=LogisticRegression())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": np.ones((10, 2))}, CannotCertify, "y: it has 2 dimensions"),
        ({"y": np.linspace(0, 1, 10)}, CannotCertify, "y: its values are real numbers.*Use Ridge"),
        ({"y": np.ones(10)}, CannotCertify, "all labels are the same"),
        ({"y": np.array([0, 1, np.nan] * 3 + [1])}, BadTable, "y, row 2: the label is missing"),
        ({"X": np.full((10, 2), np.inf)}, BadTable, "row 0, column features"),
        ({"X": np.array([["a", "b"]] * 10)}, BadTable, "features are numbers"),
        ({"X": np.ones(10)}, BadTable, "X has 1 dimensions"),
        ({"subjects": ["p"] * 9}, BadTable, "more rows than subject has entries"),
        ({"classes": [1, 0]}, CannotCertify, "Sort the list"),
        ({"classes": [0, 2]}, BadTable, "row 1, column label: the label is not one of the 2 classes"),
        ({"holdout": (np.ones((1, 2)), [5])}, BadTable, "holdout: the table, row 0, column label"),
        ({"holdout": (np.ones((1, 2)),)}, BadTable, "holdout: pass a tuple"),
        ({"sample_weight": np.ones(10)}, CannotCertify, "sample_weight: every row has the same weight"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_created(
    lethe: Lethe, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"X": np.ones((10, 2)), "y": np.arange(10) % 2, "subjects": ["p"] * 10} | change
    estimator = LogisticRegression(fit_intercept=False)
    with pytest.raises(error, match=message):
        register(lethe, "refused", estimator, **given)
    assert "refused" not in [model.name for model in lethe.models.list()]


@pytest.mark.parametrize("people", ["left out", "none", "named"])
def test_noise_on_long_rows_is_noticed_by_a_holdout_without_subjects(lethe: Lethe, people: str) -> None:
    """Rows of a holdout with subjects can be erased, so they say nothing."""
    X, y = load_wine(return_X_y=True)
    public, private = X[::5], X[1::5]
    named = [f"h{row}" for row in range(len(public))]
    choices: dict[str, list[Any]] = {"left out": [], "none": [None], "named": [named]}
    call = partial(
        register, lethe, "long-rows", LogisticRegression(fit_intercept=False), private, y[1::5],
        _people(len(private)), holdout=(public, y[::5], *choices[people]), wait=False,
    )  # fmt: skip
    if people == "named":
        with pytest.raises(NoiseUnknown, match="Feature vectors longer than 13"):
            call()
        assert call(policy={"target_distance": 1e-2}).name == "long-rows"
        return
    with pytest.raises(NoiseTooLarge, match="the scores of the holdout"):  # warnings are errors in tests
        call()
    assert "long-rows" not in [model.name for model in lethe.models.list()]


def test_a_rejected_model_is_registered_again_under_its_name(lethe: Lethe) -> None:
    """The second call replaces the manifest and all files of the first, its holdout included."""
    X, y = _wine()
    plain = LogisticRegression(fit_intercept=False)
    impossible = POLICY | {"target_distance": 1e-30}
    with pytest.raises(ModelRejected, match="target_distance"):
        register(lethe, "again", plain, X, y, _people(len(X)), holdout=(X, y), policy=impossible)
    two = y < 2
    model = register(lethe, "again", plain, X[two], y[two], _people(int(two.sum())), policy=POLICY)
    assert (model.state, model.manifest.family, model.manifest.classes) == ("ready", "logistic", None)
    assert [(part.role, part.rows) for part in lethe.models.parts("again")] == [("train", int(two.sum()))]
    with pytest.raises(Conflict, match="already has a model named again"):
        register(lethe, "again", plain, X, y, _people(len(X)), policy=POLICY)


def test_weights_that_do_not_verify_are_not_loaded(lethe: Lethe) -> None:
    X, y = _wine()
    estimator = LogisticRegression(fit_intercept=False)
    register(lethe, "foreign", estimator, X, y, _people(len(X)), policy=POLICY | {"target_distance": 1e-3})
    _erase(lethe, "foreign", "p1")
    from tests.golden import __file__ as golden

    other = (Path(golden).parent / "v2" / "keys.json").read_bytes()
    with pytest.raises(NotVerified, match="version 1 of foreign does not verify"):
        load(lethe, "foreign", keys=other)
    with pytest.raises(ReleaseUnavailable, match="has no version 9"):
        load(lethe, "foreign", version=9)


TEN_LINES = """\
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from lethe import Lethe
from lethe.integrations.sklearn import load, register
client, (X, y) = Lethe(URL, KEY), load_breast_cancer(return_X_y=True)
register(client, "ten", LogisticRegression(solver="liblinear"), X / 1000, y, people, row_length=5)
erasure = client.erasures.create(["p3"], models=["ten"])
client.models.flush("ten", force=True)
client.erasures.wait(erasure.id)
estimator = load(client, "ten")
"""


def test_ten_lines_lead_from_the_import_to_a_certified_estimator(world: World) -> None:
    assert len(TEN_LINES.splitlines()) == len(ast.parse(TEN_LINES).body) == 10
    X, y = load_breast_cancer(return_X_y=True)
    people = [f"p{row}" for row in range(len(y))]
    names: dict[str, Any] = {"URL": world.url, "KEY": world.key, "people": people}
    exec(TEN_LINES, names)
    assert isinstance(names["estimator"], LogisticRegression)
    assert names["estimator"].score(X / 1000, y) > 0.85
    names["client"].close()
