"""Before registration, public figures say whether the noise of a release would spoil a classifier."""

import re
import warnings
from typing import Any

import numpy as np
import pytest

from lethe.integrations.noise_effect import (
    HARMLESS,
    NoiseTooLarge,
    declared_rows,
    rows_like,
    warn_about_noise,
)
from lethe.policy import Policy

MANIFEST: dict[str, Any] = {
    "family": "softmax",
    "width": 64,
    "classes": 10,
    "lambda": 1e-2,
    "bias": True,
    "origins": {},
    "policy": {},
}


def warning_of(manifest: dict[str, Any], length: float | None, **options: bool) -> str:
    """Return the text of the warning, or nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_noise(manifest, None if length is None else declared_rows(length), **options)
    return str(caught[0].message) if caught else ""


def test_long_rows_make_noisy_scores_and_the_suggested_distance_makes_quiet_ones() -> None:
    message = warning_of(MANIFEST, 47.0)
    assert "rows of the length 47" in message
    assert "±1.8" in message
    assert "lethe model advise" in message
    suggested = re.search(r"'target_distance': (\S+)}", message)
    assert suggested is not None
    policy = {"target_distance": float(suggested[1])}
    assert Policy.model_validate(policy).sigma * 47 <= HARMLESS * 1.001
    assert warning_of(MANIFEST | {"policy": policy}, 47.0) == ""


@pytest.mark.parametrize("length", [1.0, 4.0])
def test_short_rows_are_no_reason_to_warn(length: float) -> None:
    assert warning_of(MANIFEST, length) == ""


def test_the_default_distance_for_rows_of_unknown_length_is_worth_a_thought() -> None:
    assert "Feature vectors longer than 13.4 turn it into enough noise" in warning_of(MANIFEST, None)
    assert warning_of(MANIFEST | {"policy": {"target_distance": 1e-2}}, None) == "", "it was chosen"


def test_a_lambda_that_keeps_weights_shorter_than_the_noise_is_noticed_without_any_row() -> None:
    message = warning_of(MANIFEST | {"lambda": 10.0}, None)
    assert "the weights are at most 0.679 long, and the noise is 1.4 times as long" in message
    assert warning_of(MANIFEST | {"lambda": 10.0, "origins": {"anchor": "public"}}, 1.0) == ""


def test_the_longest_weights_bound_the_optimum() -> None:
    """At the optimum, λ/2·‖w‖² is at most the loss of zero weights."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    X, y = load_digits(return_X_y=True)
    for lam in (1e-3, 1.0, 30.0):
        fitted = LogisticRegression(C=1 / (lam * len(y)), fit_intercept=False, max_iter=10_000).fit(X, y)
        assert np.linalg.norm(fitted.coef_) <= np.sqrt(2 * np.log(10) / lam)


def test_regressions_are_judged_only_if_the_scale_of_their_targets_is_known() -> None:
    ridge = {name: value for name, value in MANIFEST.items() if name != "classes"} | {"family": "ridge"}
    assert warning_of(ridge, 1e6) == ""
    assert "change predictions" in warning_of(ridge, 1e6, signed=True)
    assert "change predictions" in warning_of(ridge | {"family": "logistic"}, 1e6)


def test_a_policy_that_cannot_be_read_is_left_to_the_service() -> None:
    assert warning_of(MANIFEST | {"policy": {"epsilon": -1}}, 47.0) == ""


def test_the_length_of_rows_is_the_root_of_their_mean_square() -> None:
    rows = rows_like(np.array([[3.0, 4.0], [0.0, 0.0]]), "the holdout")
    assert rows.length == pytest.approx(np.sqrt(12.5))
    with pytest.warns(NoiseTooLarge, match="the holdout, whose features have a length of about 3.54"):
        warn_about_noise(MANIFEST | {"policy": {"target_distance": 1.0}}, rows)
