"""Advice at registration is measured on holdout rows of other people, never on training rows."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.services import Services
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, Headers, weights, work
from tests.integration.test_networks import NETWORK, anchor

# The figures do not depend on the database, so one is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

OTHERS = dataset(rows=60, subjects=40, seed=8, first=100)
FIGURES = ("advice", "sigma_relative", "network", "sigma")
# Figures of the training rows from which ε, δ, Δ* or λ could be chosen.
FORBIDDEN = {"gradient_norm", "distance_bound", "curvature_floor", "distance", "loss", "norm"}


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


def report_of(
    api: Api, services: Services, name: str, *, holdout: bytes | None = OTHERS, seed: int = 7, **change: Any
) -> Any:
    api.call("POST", "", 201, json={"name": name, "manifest": MANIFEST | change})
    api.call("PUT", f"/{name}/dataset/part0", 201, content=dataset(seed=seed))
    if holdout is not None:
        api.call("PUT", f"/{name}/holdout/h0", 201, content=holdout)
    if "network" in change:
        api.call("PUT", f"/{name}/anchor", 201, content=anchor())
    if seed > 100:
        api.call("PUT", f"/{name}/weights", 201, content=weights(float(seed)))
    api.call("POST", f"/{name}/validate", 202)
    work(services)
    found = api.call("GET", f"/{name}")
    assert found["state"] == "ready", found["reasons"]
    assert FORBIDDEN.isdisjoint(found["report"])
    return found["report"]


@pytest.mark.parametrize("change", [{}, NETWORK], ids=["softmax", "network"])
def test_the_same_holdout_gives_the_same_advice_whatever_the_training_rows(
    api: Api, services: Services, change: dict[str, Any]
) -> None:
    one = report_of(api, services, "one", **change)
    two = report_of(api, services, "two", seed=8, **change)
    for name in FIGURES:
        assert one[name] == pytest.approx(two[name]) if isinstance(one[name], float) else True
    assert one["advice"] == two["advice"]
    assert (
        one["advice"]
        == "Measured on 60 holdout rows of people without training rows, and on no training row."
    )
    assert 0 < one["sigma_relative"] < 10
    assert (one["network"] is None) == (not change)


def test_uploaded_weights_have_no_part_in_it_either(api: Api, services: Services) -> None:
    trained = report_of(api, services, "trained")
    uploaded = report_of(api, services, "uploaded", seed=1000)
    assert uploaded["weights"] == "uploaded"
    assert uploaded["sigma_relative"] == trained["sigma_relative"]


@pytest.mark.parametrize(
    "holdout", [None, dataset(rows=30, subjects=30, seed=8)], ids=["none", "the same people"]
)
def test_without_rows_of_others_there_is_no_advice(
    api: Api, services: Services, holdout: bytes | None
) -> None:
    report = report_of(api, services, "toy", holdout=holdout)
    assert (report["sigma_relative"], report["network"]) == (None, None)
    assert report["advice"].startswith("There is no advice")
    assert "a public dataset" in report["advice"]


def test_holdout_rows_of_people_in_the_training_data_are_left_out(api: Api, services: Services) -> None:
    """The holdout names s20 … s59; those below s30 are in the training data."""
    report = report_of(api, services, "toy", holdout=dataset(rows=40, subjects=40, seed=8, first=20))
    assert report["advice"].startswith("Measured on 30 holdout rows")


def test_a_rejection_quotes_no_figure_of_the_rows(api: Api, services: Services) -> None:
    policy = MANIFEST["policy"] | {"target_distance": 1e-14}
    api.create(policy=policy)
    api.put("dataset/part0", dataset())
    api.call("POST", "/toy/validate", 202)
    work(services)
    reasons = api.call("GET", "/toy")["reasons"]
    assert reasons
    figures = {
        word.strip(";,():") for reason in reasons for word in reason.split() if any(map(str.isdigit, word))
    }
    assert figures <= {"1e-14", "3.73e-14"}, "Δ* and σ, which follow from the policy alone"
