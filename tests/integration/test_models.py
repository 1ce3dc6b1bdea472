"""Models from creation to retirement: registration, policy, anchor, plug-in families."""

import io
import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load
from sqlalchemy import select, update

from app.core.settings import Settings
from app.db import manifest as manifests
from app.db.states import TaskState
from app.db.tables import Batch, Task, TaskSubject, Version
from app.dispatcher import orphan_sweep
from app.dispatcher.loop import Dispatcher
from app.gateway.main import create_app
from app.services import Services
from lethe.certificate.assurance import check_assurance
from tests.integration.harness import MANIFEST, dataset, parquet
from tests.integration.model_api import Api, Headers, newest_statement, registered, weights, work
from worker.data import families
from worker.data.families import Family
from worker.engine.families import Ridge

CANARY = "canary-person"


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def ready(api: Api, services: Services) -> Api:
    return registered(api, services)


def test_registration_reports_what_it_measured(ready: Api, services: Services) -> None:
    report = ready.call("GET", "/toy")["report"]
    assert (report["rows"], report["subjects"], report["holdout_rows"]) == (120, 30, 30)
    assert sum(report["classes"].values()) == 120
    assert report["dimension"] == 21
    assert report["warning_codes"] == []
    shared, small = report["warnings"]
    assert shared == "30 people have rows both in the training data and in the holdout"
    assert small.startswith("batches of 1 person are sealed")
    assert [entry | {"size": 0} for entry in ready.call("GET", "/toy/dataset")] == [
        {"part": "part0", "role": "train", "state": "held", "rows": 120, "size": 0},
        {"part": "h0", "role": "holdout", "state": "held", "rows": 30, "size": 0},
    ]
    for place in ("weights", "anchor", "holdout/h1", "dataset/part0"):
        ready.put(place, b"late", 409)


def test_a_rejected_model_says_every_reason_quotes_no_row_and_can_be_mended(
    api: Api, services: Services
) -> None:
    api.create()
    labels, features = np.array([0, 4711, 1]), np.ones((3, 6))
    features[2, 0] = np.nan
    api.put("dataset/part0", parquet([CANARY] * 3, labels, features))
    api.put("dataset/part1", b"not parquet")
    api.put("weights", weights(classes=4))
    api.put("anchor", weights(surplus=torch.zeros(1)))
    api.call("POST", "/toy/validate", 202)
    work(services)
    model = api.call("GET", "/toy")
    assert model["state"] == "rejected"
    assert model["reasons"] == [
        "dataset part0: row 1: the label is not in 0 … 2",
        "dataset part0: row 2: a feature is missing, NaN or infinite",
        "dataset part1: not a Parquet file",
        "weights: weight has the shape (4, 6), expected (3, 6)",
        "weights: bias has the shape (4,), expected (3,)",
        "anchor: the file has 1 tensor besides weight, bias",
        "anchor: one was uploaded, but origins.anchor says zero; declare there where it comes from",
    ]
    api.put("dataset/part0", dataset())
    api.call("DELETE", "/toy/dataset/part1", 204)
    api.put("weights", weights(0.5))
    api.put("anchor", weights(0.25))
    api.call("PATCH", "/toy", json={"origins": {"anchor": "a public model"}})
    api.call("POST", "/toy/validate", 202)
    work(services)
    model = api.call("GET", "/toy")
    assert (model["state"], model["reasons"]) == ("ready", [])
    assert model["report"]["weights"] == "uploaded"
    assert model["report"]["warnings"][0] == (
        "the uploaded weights are not within target_distance of the objective's optimum: the first erasure "
        "will also move the model there"
    )
    api.call("GET", "/toy/weights", 404)
    assert api.call("GET", "/toy/anchor")["complete"]
    stored = services.storage.list("datasets")
    assert len(stored) == 2, "only the part and the anchor are left"


@pytest.mark.parametrize(
    ("change", "part", "reason"),
    [
        ({}, dataset(rows=0), "the dataset has no rows: upload at least one part with rows"),
        (
            {},
            dataset(rows=9, classes=1),
            "all rows have the same label: a classifier needs rows of at least two classes",
        ),
        (
            {"policy": {"target_distance": 1e-14, "delta": 1e-5}},
            dataset(),
            "cannot be certified: rounding errors alone may be larger at this lambda",
        ),
    ],
)
def test_data_that_cannot_be_certified_is_rejected(
    api: Api, services: Services, change: dict[str, Any], part: bytes, reason: str
) -> None:
    api.create(**change)
    api.put("dataset/part0", part)
    api.call("POST", "/toy/validate", 202)
    work(services)
    model = api.call("GET", "/toy")
    assert model["state"] == "rejected"
    assert any(reason in text for text in model["reasons"]), model["reasons"]


def test_the_anchor_is_in_every_objective_and_on_the_certificate(api: Api, services: Services) -> None:
    """λ is so large that a solver that ignores the anchor ends near zero."""
    api.create(
        **{"lambda": 50.0, "origins": MANIFEST["origins"] | {"anchor": "public"}},
        policy=MANIFEST["policy"] | {"method": "retrain"},
    )
    api.put("dataset/part0", dataset())
    sent = api.put("anchor", weights(3.0))
    api.call("POST", "/toy/validate", 202)
    work(services)
    api.erase("s1", "s2")
    work(services)
    with services.database.reading() as session:
        version = session.scalars(select(Version).where(Version.state == "current")).one()
    assert version.number == 1
    tensors = load(b"".join(services.storage.read(version.path)))
    assert abs(tensors["weight"].double() - 3.0).max() < 0.1
    predicate = newest_statement(services).predicate
    assert predicate.mechanism == "retrain"
    assert predicate.objective.anchor_sha256 == sent["sha256"]
    assert predicate.objective.origins.anchor == "public"


def test_a_sealed_batch_keeps_the_policy_it_was_sealed_under(ready: Api, services: Services) -> None:
    old = ready.call("GET", "/toy")
    ready.erase("s1", "s2")
    Dispatcher(services).seal_due()
    changed = ready.call("PATCH", "/toy", json={"policy": {"target_distance": 1e-3, "epsilon": 0.5}})
    assert changed["sigma"] > old["sigma"]
    work(services)
    with services.database.reading() as session:
        batch = session.scalars(select(Batch)).one()
    assert batch.state == "completed"
    assert batch.policy["target_distance"] == 1e-4
    predicate = newest_statement(services).predicate
    assert predicate.noise.sigma == old["sigma"]
    assert predicate.guarantee.epsilon == 1.0


@pytest.mark.parametrize(("people", "alerted"), [(2, False), (25, True)])
def test_a_class_drift_past_the_limit_is_an_alert_when_it_is_of_many_people(
    ready: Api, services: Services, people: int, alerted: bool
) -> None:
    """An alert about the classes of a few people would reveal something about each of them."""
    ready.erase(*(f"s{i}" for i in range(people)))
    work(services)
    with services.database.reading() as session:
        batch = session.scalars(select(Batch)).one()
    events = ready.gateway.get(f"/v1/batches/{batch.id}/events", headers=ready.headers).text
    assert ("event: alert" in events) == alerted


def test_the_policy_is_validated_as_a_whole_and_the_rest_is_fixed_once_registered(ready: Api) -> None:
    problem = ready.call("PATCH", "/toy", 422, json={"policy": {"epsilon": 9.0}})
    assert problem["errors"][0]["at"] == "body/policy"
    assert "not even one release" in problem["detail"]
    ready.call("PATCH", "/toy", 422, json={"policy": {"surprise": 1}})
    ready.call("PATCH", "/toy", 409, json={"lambda": 1.0})
    ready.call("PATCH", "/toy", json={"policy": {"batch_subjects": 7}})
    back = ready.call("PATCH", "/toy", json={"policy": {"batch_subjects": None}})
    assert back["manifest"]["policy"]["batch_subjects"] == 100
    assert back["manifest"]["policy"]["suppression_list"] is True


def test_retiring_waits_for_nobody_and_ends_downloads(ready: Api, services: Services) -> None:
    ready.erase("nobody", "noone")
    assert "Erasures are waiting" in ready.call("DELETE", "/toy", 409)["detail"]
    Dispatcher(services).seal_due()
    assert "in progress" in ready.call("DELETE", "/toy", 409)["detail"]
    work(services)
    assert ready.call("DELETE", "/toy")["state"] == "retired"
    assert ready.call("DELETE", "/toy")["state"] == "retired"
    ready.call("GET", "/toy/versions/current/checkpoint", 410)
    ready.call("PATCH", "/toy", 409, json={"policy": {}})
    ready.call("POST", "/toy/append", 409)
    ready.put("dataset/part9", b"", 409)
    asked = ready.gateway.post(
        "/v1/erasures", json={"subjects": ["s1"], "models": ["toy"]}, headers=ready.headers
    )
    assert asked.status_code == 422


def test_a_retired_model_holds_nothing_any_more(ready: Api, services: Services) -> None:
    ready.put("dataset/part1", dataset(rows=40, seed=9))
    ready.call("PUT", "/toy/dataset/part2", 202, {"Content-Range": "bytes 0-2/9"}, content=b"abc")
    evaluation = ready.gateway.post("/v1/models/toy/evaluations", headers=ready.headers).json()
    model_id = ready.call("DELETE", "/toy")["id"]
    assert services.storage.list("datasets") + services.storage.list("attempts") == []
    assert ready.call("GET", "/toy/dataset") == []
    with services.database.reading() as session:
        assert session.scalars(select(Version.state)).all() == ["purged"]
    work(services)
    where = f"/v1/models/toy/evaluations/{evaluation['id']}"
    assert ready.gateway.get(where, headers=ready.headers).json()["error"] == "the model changed; ask again"
    services.storage.write(f"datasets/{model_id}/{model_id}", [b"an upload that came to its end too late"])
    assert orphan_sweep.sweep(services) == 1
    assert services.storage.list("datasets") == []


def test_a_model_whose_erasure_failed_is_not_retired(ready: Api, services: Services) -> None:
    ready.erase("s1", "s2")
    with services.database.writing() as session:
        session.execute(update(Task).values(state=TaskState.FAILED))
    assert "failed" in ready.call("DELETE", "/toy", 409)["detail"]


def test_a_model_that_never_became_ready_holds_up_no_erasure_once_retired(
    api: Api, services: Services
) -> None:
    api.create()
    api.put("dataset/part0", dataset())
    body = {"subjects": ["s1"], "models": ["toy"]}  # by name: the request waits until it is registered
    where = api.gateway.post("/v1/erasures", json=body, headers=api.headers).headers["Location"]
    assert api.gateway.get(where, headers=api.headers).json()["state"] != "completed"
    api.call("DELETE", "/toy")
    erasure = api.gateway.get(where, headers=api.headers).json()
    assert erasure["state"] == "completed"
    assert erasure["tasks"][0]["outcomes"] == {"model_not_registered": 1}
    assert services.storage.list("datasets") == []
    with services.database.reading() as session:
        assert session.scalars(select(TaskSubject.identifier)).all() == [None]
    assert api.gateway.get(f"{where}/receipts", headers=api.headers).json()["items"] == []


def test_an_erasure_ends_at_once_on_models_that_are_not_registered(api: Api, services: Services) -> None:
    """A request for all models never waits for a draft or a rejected model. It says why."""
    api.create()
    api.put("dataset/part0", b"not parquet")
    draft = api.ask("s1")
    assert (draft["state"], draft["tasks"][0]["outcomes"]) == ("completed", {"model_not_registered": 1})
    api.call("POST", "/toy/validate", 202)
    waiting = api.ask("s1", "s2")
    assert waiting["state"] == "received", "the model may be ready in a moment"
    work(services)
    assert api.call("GET", "/toy")["state"] == "rejected"
    after = api.ask("s1")
    named = api.ask("s1", models=["toy"])
    for erasure in (waiting, after, named):
        shown = api.gateway.get(f"/v1/erasures/{erasure['id']}", headers=api.headers).json()
        assert shown["state"] == "completed"
        assert shown["tasks"][0]["outcomes"] == {"model_not_registered": shown["subjects"]}
        assert shown["tasks"][0]["notice"].startswith("This model was not registered")
    with services.database.reading() as session:
        assert set(session.scalars(select(TaskSubject.identifier))) == {None}, "no identifier is kept"
    assert api.call("GET", "/toy/ledger")["releases_left"] == 0


def test_a_holdout_without_subjects_is_taken(api: Api, services: Services) -> None:
    api.create()
    api.put("dataset/part0", dataset())
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(dataset(rows=9))).drop_columns("subject_id"), sink)
    api.put("holdout/h", sink.getvalue())
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("GET", "/toy")["report"]["holdout_rows"] == 9


def test_a_plug_in_family_is_registered_and_retrained(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("a_plug_in")
    module.family = Family(  # type: ignore[attr-defined]
        "plugged",
        "half squared error",
        lambda manifest: {"weight": (1, manifest.width)},
        lambda manifest, rows, anchor: Ridge(rows, manifest.lam, anchor, bias=False),
        lambda _: None,
    )
    monkeypatch.setitem(sys.modules, "a_plug_in", module)
    change = {"family": "plugged", "classes": None}
    problem = api.call("POST", "", 422, json={"name": "toy", "manifest": MANIFEST | change})
    assert "method to retrain" in problem["detail"]
    change["policy"] = MANIFEST["policy"] | {"method": "retrain"}
    problem = api.call("POST", "", 422, json={"name": "toy", "manifest": MANIFEST | change})
    assert "the family is not known" in problem["detail"]
    entry = EntryPoint("plugged", "a_plug_in:family", "lethe.families")
    for place in (manifests, families):
        monkeypatch.setattr(place, "entry_points", lambda group: [entry] if group == entry.group else [])
    api.create(**change)
    api.put("dataset/part0", dataset())
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("GET", "/toy")["report"]["dimension"] == 6
    api.erase("s1", "s2")
    work(services)
    predicate = newest_statement(services).predicate
    assert (predicate.objective.family, predicate.mechanism) == ("plugged", "retrain")
    assert check_assurance(predicate)


def test_a_flush_for_a_few_people_needs_insistence(api: Api, services: Services) -> None:
    """Anyone with the versions before and after could nearly reconstruct a single erased row."""
    api.create(policy={"target_distance": 1e-4})
    api.put("dataset/part0", dataset())
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("POST", "/toy/flush", 202) == {"waiting_subjects": 0}
    api.erase("s1")
    problem = api.call("POST", "/toy/flush", 409)
    assert problem["detail"].startswith("1 person is waiting, and the policy requires at least 10 in a batch")
    assert "force=true" in problem["detail"]
    dispatcher = Dispatcher(services)
    dispatcher.seal_due()
    assert api.gateway.get("/v1/batches", headers=api.headers).json()["items"] == []
    assert api.call("POST", "/toy/flush?force=true", 202) == {"waiting_subjects": 1}
    dispatcher.seal_due()
    (batch,) = api.gateway.get("/v1/batches", headers=api.headers).json()["items"]
    assert (batch["sealed_because"], batch["subjects"]) == ("flush", 1)
    assert batch["warnings"] == [
        "Sealed with 1 person, fewer than the policy's minimum of 10. Anyone who compares the versions "
        "before and after it can nearly reconstruct the erased rows."
    ]


def test_features_that_look_standardised_lower_the_tier_until_declared(api: Api, services: Services) -> None:
    """Besides policy and annotations, this is all that the owner of a registered model can still change."""
    api.create()
    generator = np.random.default_rng(5)
    labels, features = np.arange(400) % 3, generator.normal(size=(400, 6))
    features = (features - features.mean(0)) / features.std(0)
    api.put("dataset/part0", parquet([f"s{i}" for i in range(400)], labels, features))
    api.call("POST", "/toy/validate", 202)
    work(services)
    model = api.call("GET", "/toy")
    assert model["report"]["warning_codes"] == ["features-look-standardised"]
    assert model["assurance"] == "conditional"
    assert "origins.standardisation" in model["assurance_notes"][0]
    api.call("PATCH", "/toy", 409, json={"origins": {"features": "other"}})
    model = api.call("PATCH", "/toy", json={"annotations": {"team": "ward 3"}})
    assert model["manifest"]["annotations"] == {"team": "ward 3"}
    model = api.call("PATCH", "/toy", json={"origins": {"standardisation": "public data"}})
    assert (model["assurance"], model["assurance_notes"]) == ("proved", [])
    assert model["manifest"]["origins"]["features"] == "made up"


def test_a_tenant_may_have_so_many_models_and_retired_ones_do_not_count(
    settings: Settings, admin: dict[str, str]
) -> None:
    few = settings.model_copy(update={"max_models_per_tenant": 2})
    with TestClient(create_app(few)) as gateway:

        def create(name: str) -> int:
            body = {"name": name, "manifest": MANIFEST}
            return gateway.post("/v1/models", json=body, headers=admin).status_code

        assert [create(name) for name in ("a", "b", "c")] == [201, 201, 409]
        assert gateway.delete("/v1/models/a", headers=admin).status_code == 200
        assert create("c") == 201
        detail = gateway.post("/v1/models", json={"name": "d", "manifest": MANIFEST}, headers=admin).json()
        assert "which is the limit of this installation" in detail["detail"]
