"""Advice on request: before and after registration, from the holdout alone, and void if the model changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.db import transitions
from app.db.states import FailureCause, JobState
from app.db.tables import DatasetImport, DatasetPart, Job, Model
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import Api, Headers, weights, work
from tests.integration.test_networks import NETWORK, anchor
from worker import imports
from worker.registration import advice_job
from worker.registration.advice import VOIDS_ASSURANCE, advise

OTHERS = dataset(rows=60, subjects=40, seed=8, first=100)


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def uploading(api: Api) -> Api:
    api.create()
    api.put("dataset/part0", dataset())
    api.put("holdout/h0", OTHERS)
    return api


def start(api: Api, name: str = "toy") -> str:
    answer = api.gateway.post(f"/v1/models/{name}/advice", headers=api.headers)
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"/v1/models/{name}/advice/{answer.json()['id']}"
    assert (answer.json()["state"], answer.json()["result"]) == ("waiting", None)
    return f"/{name}/advice/{answer.json()['id']}"


def advised(api: Api, services: Services, name: str = "toy") -> Any:
    where = start(api, name)
    work(services)
    return api.call("GET", where)


def without_seconds(result: Any) -> Any:
    return result | {"cells": [cell | {"seconds": None} for cell in result["cells"]]}


def test_advice_can_be_asked_for_before_registration_and_again_when_ready(
    uploading: Api, services: Services
) -> None:
    before = advised(uploading, services)
    result = before["result"]
    assert (before["state"], before["version"], before["error"]) == ("completed", 0, None)
    assert (result["rows"], result["fit_rows"], result["score_rows"]) == (60, 40, 20)
    assert (
        result["basis"]
        == "Measured on 60 holdout rows of people without training rows, and on no training row."
    )
    assert result["warnings"][0] == VOIDS_ASSURANCE
    assert result["training_rows"] == 120
    assert {cell["lambda"] for cell in result["cells"]} == {5e-4, 5e-3, 5e-2, 0.5}
    assert {cell["target_distance"] for cell in result["cells"]} == {1e-4, 1e-3, 1e-2}
    choice = result["recommendation"]
    assert (choice["lambda"], choice["target_distance"]) in {
        (cell["lambda"], cell["target_distance"]) for cell in result["cells"]
    }
    model = uploading.call("GET", "/toy")
    assert (model["state"], model["report"], model["reasons"]) == ("uploading", None, [])

    uploading.call("POST", "/toy/validate", 202)
    work(services)
    model = uploading.call("GET", "/toy")
    assert model["state"] == "ready", model["reasons"]
    report = model["report"]
    same = without_seconds(result)
    assert without_seconds({"cells": report["advice_grid"]})["cells"] == same["cells"]
    assert report["recommendation"] == choice
    assert report["advice_warnings"] == result["warnings"]

    again = advised(uploading, services)
    assert without_seconds(again["result"]) == same
    listed = uploading.call("GET", "/toy/advice")["items"]
    assert [item["id"] for item in listed] == [again["id"], before["id"]]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_training_rows_have_no_influence_on_the_figures(api: Api, services: Services) -> None:
    """Two models with the same holdout and other training rows, labels, people and uploaded weights."""
    results = []
    for name, part in (("one", dataset()), ("two", dataset(rows=300, subjects=77, seed=99))):
        api.call("POST", "", 201, json={"name": name, "manifest": MANIFEST})
        api.call("PUT", f"/{name}/dataset/part0", 201, content=part)
        api.call("PUT", f"/{name}/holdout/h0", 201, content=OTHERS)
        results.append(advised(api, services, name)["result"])
    api.call("PUT", "/two/weights", 201, content=weights(5.0))
    results.append(advised(api, services, "two")["result"])
    figures = [without_seconds(result) | {"training_rows": None} for result in results]
    assert figures[0] == figures[1] == figures[2]
    assert [result["training_rows"] for result in results] == [120, 300, 300]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_people_with_training_rows_are_left_out_and_without_others_there_is_no_advice(
    uploading: Api, services: Services
) -> None:
    """The first holdout names s20 … s79; those below s30 are in the training data."""
    uploading.put("holdout/h0", dataset(rows=60, subjects=60, seed=8, first=20))
    assert advised(uploading, services)["result"]["rows"] == 50
    uploading.put("holdout/h0", dataset(rows=60, subjects=30, seed=8))
    none = advised(uploading, services)
    assert (none["state"], none["result"]) == ("failed", None)
    assert none["error"].startswith("There is no advice")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_holdout_alone_is_enough(api: Api, services: Services) -> None:
    api.create()
    api.put("holdout/h0", OTHERS)
    result = advised(api, services)["result"]
    assert result["training_rows"] is None
    assert result["recommendation"] is not None
    assert all(cell["seconds"] is None for cell in result["cells"])
    assert any("No training data has been uploaded yet" in text for text in result["warnings"])


def test_advice_is_refused_with_the_reason(api: Api, services: Services) -> None:
    api.create()
    api.put("dataset/part0", dataset())
    assert "no holdout" in api.call("POST", "/toy/advice", 409)["detail"]
    assert "public dataset" in api.call("POST", "/toy/advice", 409)["detail"]
    api.put("holdout/h0", OTHERS)
    first = start(api)
    assert "in progress" in api.call("POST", "/toy/advice", 409)["detail"]
    assert "Validate the model after it has ended" in api.call("POST", "/toy/validate", 409)["detail"]
    assert api.call("GET", "/toy")["state"] == "uploading"
    work(services)
    assert api.call("GET", first)["state"] == "completed"
    api.call("POST", "/toy/validate", 202)
    assert "validating" in api.call("POST", "/toy/advice", 409)["detail"]
    work(services)
    api.call("DELETE", "/toy")
    assert "retired" in api.call("POST", "/toy/advice", 409)["detail"]
    api.call("GET", f"/toy/advice/{new_id()}", 404)
    api.call("POST", "/other/advice", 404)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_starting_needs_the_scope_to_administer_models_and_reading_the_scope_to_read_them(
    uploading: Api, services: Services
) -> None:
    tenant = "tenant"
    where = start(uploading)
    auditor = key_for(services, tenant, Scope.AUDIT_READ)
    reader = key_for(services, tenant, Scope.MODELS_READ)
    assert uploading.gateway.get(f"/v1/models{where}", headers=auditor).status_code == 403
    assert uploading.gateway.post("/v1/models/toy/advice", headers=reader).status_code == 403


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda api: api.put("holdout/h0", b"no Parquet"), "holdout h0: not a Parquet file"),
        (lambda api: api.put("holdout/h0", dataset(width=5)), "holdout h0: features has 5 values per row"),
        (lambda api: api.put("dataset/part0", b"no Parquet"), "the identifiers in the training data"),
        (
            lambda api: api.call("PATCH", "/toy", json={"origins": {"anchor": "public rows"}}),
            "anchor: origins.anchor declares one, but none was uploaded",
        ),
        (lambda api: api.put("anchor", weights(classes=2)), "anchor: "),
    ],
    ids=["holdout", "width", "dataset", "anchor", "shape of the anchor"],
)
def test_files_that_do_not_fit_are_reported(
    uploading: Api, services: Services, change: Callable[[Api], Any], reason: str
) -> None:
    change(uploading)
    failed = advised(uploading, services)
    assert (failed["state"], failed["result"]) == ("failed", None)
    assert failed["error"].startswith(reason)
    assert uploading.call("GET", "/toy")["state"] == "uploading"


@pytest.mark.parametrize(
    "change",
    [
        lambda api: api.put("holdout/h1", OTHERS),
        lambda api: api.call("PATCH", "/toy", json={"lambda": 0.2}),
        lambda api: api.call("DELETE", "/toy"),
    ],
    ids=["data", "manifest", "retired"],
)
def test_a_change_of_the_model_voids_the_advice(
    uploading: Api,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Api], Any],
) -> None:
    def change_and_advise(*args: Any, **options: Any) -> Any:
        change(uploading)
        return advise(*args, **options)

    monkeypatch.setattr(advice_job, "advise", change_and_advise)
    ended = advised(uploading, services)
    assert (ended["state"], ended["result"], ended["error"]) == ("failed", None, advice_job.CHANGED)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_erasure_deletes_advice_here_and_in_the_registration_report(
    uploading: Api, services: Services
) -> None:
    uploading.call("POST", "/toy/validate", 202)
    work(services)
    advised(uploading, services)
    assert uploading.call("GET", "/toy")["report"]["advice_grid"]
    uploading.erase("s1", "s101")
    work(services)
    assert uploading.call("GET", "/toy/advice")["items"] == []
    report = uploading.call("GET", "/toy")["report"]
    assert (report["advice_grid"], report["recommendation"]) == (None, None)
    assert report["rows"] == 120
    assert advised(uploading, services)["version"] == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_progress_is_shown_while_it_runs_and_cleared_afterwards(
    uploading: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def stored() -> Any:
        with services.database.reading() as session:
            return session.scalars(select(Model.progress)).one()

    def watch(*args: Any, on_progress: Any, **options: Any) -> Any:
        def report(share: float) -> None:
            on_progress(share)
            seen.append(stored())

        return advise(*args, on_progress=report, **options)

    monkeypatch.setattr(advice_job, "advise", watch)
    monkeypatch.setattr(advice_job, "PROGRESS_SECONDS", 0.0)
    assert advised(uploading, services)["state"] == "completed"
    assert {step["step"] for step in seen} == {"advice"}
    percents = [step["percent"] for step in seen]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert all(step["eta_seconds"] >= 0 for step in seen)
    assert stored() is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_last_failed_attempt_clears_the_progress(uploading: Api, services: Services) -> None:
    where = start(uploading)
    with services.database.writing() as session:
        job = session.scalars(select(Job)).one()
        session.get_one(Model, job.model_id).progress = {"step": "advice", "percent": 5}
        transitions.dispatch(session, job, now())
        assert job.token is not None
        assert transitions.claim(session, job.id, job.token, now())
        transitions.attempt_failed(
            session, job, cause=FailureCause.UNEXPECTED, error="gone", now=now(), max_attempts=1, backoff=0.0
        )
        assert job.state == JobState.FAILED
        assert session.get_one(Model, job.model_id).progress is None
    assert uploading.call("GET", where)["state"] == "failed"
    uploading.call("POST", "/toy/validate", 202)


def test_parts_to_import_are_imported_once_even_if_uploaded_meanwhile(
    settings: Settings, admin: Headers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("part", dataset()), ("holdout", OTHERS)):
        (tmp_path / f"{name}.parquet").write_bytes(content)
    allowed = settings.model_copy(update={"import_roots": f"*=file://{tmp_path}"})
    services = Services(allowed)
    with TestClient(create_app(allowed)) as gateway:
        api = Api(gateway, admin)
        api.create()
        for kind, part, file in (("dataset", "p0", "part"), ("holdout", "h0", "holdout")):
            uri = f"file://{tmp_path}/{file}.parquet"
            api.call("POST", f"/toy/{kind}/import", 202, json={"part": part, "uri": uri})
        original = imports.copy

        def copy_and_upload(*args: Any) -> Any:
            stored = original(*args)
            if "part.parquet" in args[2]:
                api.put("dataset/p0", dataset(seed=9))
            return stored

        monkeypatch.setattr(imports, "copy", copy_and_upload)
        assert advised(api, services)["result"]["rows"] == 60
    with services.database.reading() as session:
        assert session.scalars(select(DatasetImport)).all() == []
        parts = session.scalars(select(DatasetPart)).all()
    assert sorted(part.name for part in parts) == ["h0", "p0"]
    assert sorted(services.storage.list("datasets")) == sorted(part.path for part in parts)
    services.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_network_gets_advice_about_its_curvature_and_no_grid(api: Api, services: Services) -> None:
    api.create(**NETWORK)
    api.put("holdout/h0", OTHERS)
    api.put("anchor", anchor())
    result = advised(api, services)["result"]
    assert (result["cells"], result["recommendation"], result["fit_rows"]) == ([], None, None)
    assert result["network"]["curvature_needed"] > 0
    assert result["warnings"][0] == VOIDS_ASSURANCE
