"""Counts of people count distinct people: someone in twenty requests, or twice in one, counts once."""

from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import new_id
from app.core.vault import Vault
from app.db import transitions
from app.db.tables import Model, TaskSubject
from app.gateway.erasures import repository
from app.services import Services
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, Headers, newest_statement, work

COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"


@pytest.fixture
def ready(gateway: TestClient, admin: Headers, services: Services) -> Api:
    """Register a model of four people with thirty rows each. A batch is sealed at two people."""
    api = Api(gateway, admin)
    api.create(policy=MANIFEST["policy"] | {"batch_subjects": 2})
    api.put("dataset/part0", dataset(subjects=4))
    api.call("POST", "/toy/validate", 202)
    work(services)
    return api


def ask(api: Api, *subjects: str) -> Any:
    answer = api.gateway.post("/v1/erasures", json={"subjects": subjects}, headers=api.headers)
    assert answer.status_code == 202
    return answer.json()


def hashes(services: Services) -> set[bytes | None]:
    with services.database.reading() as session:
        return set(session.scalars(select(TaskSubject.person)))


def batches(api: Api) -> Any:
    return api.gateway.get("/v1/batches", headers=api.headers).json()["items"]


def test_one_person_in_twenty_requests_fills_no_batch(ready: Api, services: Services) -> None:
    for _ in range(20):
        ask(ready, "s1")
    work(services)
    assert batches(ready) == []
    assert ready.call("GET", "/toy")["waiting_subjects"] == 1
    assert len(hashes(services)) == 1
    ask(ready, "s2")
    assert ready.call("GET", "/toy")["waiting_subjects"] == 2
    work(services)
    (batch,) = batches(ready)
    assert (batch["state"], batch["sealed_because"], batch["subjects"]) == ("completed", "count", 2)


def test_one_person_in_twenty_requests_is_not_described_as_a_crowd(ready: Api, services: Services) -> None:
    for _ in range(20):
        ask(ready, "s1")
    assert ready.call("POST", "/toy/flush", 202) == {"waiting_subjects": 1}
    work(services)
    (batch,) = batches(ready)
    assert (batch["state"], batch["subjects"], batch["records"]) == ("completed", 1, 30)
    assert batch["shift"] is None, "thirty rows of one person are still one person"
    said = newest_statement(services).predicate.deletion_set
    assert (said.requests, said.people, said.commitments, said.records) == (20, 1, 20, None)


def test_someone_named_twice_in_one_request_is_one_person(ready: Api, services: Services) -> None:
    shown = ask(ready, "s1", COMPOSED, "s1", DECOMPOSED)
    assert shown["subjects"] == 2
    work(services)
    assert batches(ready)[0]["subjects"] == 2


def test_the_hash_goes_with_the_identifier(ready: Api, services: Services) -> None:
    withdrawn = ask(ready, "s3")
    assert None not in hashes(services)
    where = f"/v1/erasures/{withdrawn['id']}"
    assert ready.gateway.delete(where, headers=ready.headers).status_code == 200
    assert hashes(services) == {None}
    ask(ready, "s1", "s2")
    work(services)
    assert batches(ready)[0]["state"] == "completed"
    assert hashes(services) == {None}


def test_tenants_and_keys_share_no_hashes(services: Services) -> None:
    one, two = new_id(), new_id()
    vault = services.vault
    assert vault.person(one, "ada") == vault.person(one, "ada")
    others = {vault.person(two, "ada"), vault.person(one, "bob"), Vault(b"k" * 32).person(one, "ada")}
    assert len(others | {vault.person(one, "ada")}) == 4


def test_requests_from_before_there_was_a_hash_are_counted_too(ready: Api, services: Services) -> None:
    ask(ready, "s1")
    with services.database.writing() as session:
        session.scalars(select(TaskSubject)).one().person = None
        model = session.scalars(select(Model)).one()
        assert transitions.waiting_subjects(session, model.id) == 1


def test_the_dashboard_counts_a_person_once_over_all_models(
    ready: Api, services: Services, gateway: TestClient
) -> None:
    manifest = MANIFEST | {"policy": MANIFEST["policy"] | {"batch_subjects": 1}}
    body = {"name": "other", "manifest": manifest}
    assert gateway.post("/v1/models", json=body, headers=ready.headers).status_code == 201
    part = gateway.put("/v1/models/other/dataset/p", content=dataset(subjects=4), headers=ready.headers)
    assert part.status_code == 201
    gateway.post("/v1/models/other/validate", headers=ready.headers)
    work(services)
    shown = ask(ready, "s1", "nobody")
    work(services)
    with services.database.reading() as session:
        found = repository.people_by_outcome(session, UUID(shown["id"]))
    assert found == {"erased": 1, "not_in_training_set": 1}
