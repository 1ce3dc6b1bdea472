"""Erasure requests: idempotent, all or nothing, answered after the commit. Withdrawal, deadlines, filters."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.exc import DataError

from app.core.clock import now
from app.db.states import ModelState
from app.db.tables import Erasure, Model, Task, TaskSubject
from app.gateway.auth.scopes import Scope
from app.gateway.erasures import group_commit, recording
from app.gateway.erasures.group_commit import GroupCommit
from app.gateway.erasures.schemas import ErasureRequest
from app.gateway.erasures.service import prepare
from app.gateway.errors import ServiceError, Unavailable
from app.services import Services
from tests.integration.harness import MANIFEST, key_for, set_state

Headers = dict[str, str]


@pytest.fixture
def models(gateway: TestClient, admin: Headers, services: Services) -> list[str]:
    for name in ("alpha", "beta"):
        body = {"name": name, "manifest": MANIFEST}
        assert gateway.post("/v1/models", json=body, headers=admin).status_code == 201
    set_state(services, ModelState.READY)
    return ["alpha", "beta"]


def _count(services: Services, table: type) -> int:
    with services.database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def _post(gateway: TestClient, headers: Headers, **body: Any) -> Any:
    answer = gateway.post("/v1/erasures", json={"subjects": ["ada"], **body}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


def test_one_task_per_model_and_a_deadline_of_a_month(
    gateway: TestClient, admin: Headers, models: list[str], services: Services
) -> None:
    received = (now() - timedelta(days=40)).replace(microsecond=0)
    shown = _post(gateway, admin, subjects=["ada", "bob", "ada"], received_at=received.isoformat())
    assert [task["model"] for task in shown["tasks"]] == models
    assert (shown["subjects"], shown["state"], shown["overdue"]) == (2, "received", True)
    assert _count(services, TaskSubject) == 4
    assert gateway.get(f"/v1/erasures/{shown['id']}", headers=admin).json() == shown


def test_named_models_only_and_unknown_ones_are_refused(
    gateway: TestClient, admin: Headers, models: list[str], services: Services
) -> None:
    assert [task["model"] for task in _post(gateway, admin, models=["beta"])["tasks"]] == ["beta"]
    answer = gateway.post("/v1/erasures", json={"subjects": ["a"], "models": ["gamma"]}, headers=admin)
    assert answer.status_code == 422
    assert _count(services, Erasure) == 1


def test_without_a_model_there_is_nothing_to_do(gateway: TestClient, admin: Headers) -> None:
    assert _post(gateway, admin)["state"] == "completed"


@pytest.mark.parametrize("received", ["9999-12-31T00:00:00Z", "0001-01-01T00:00:00Z", "2026-01-01T00:00:00"])
def test_an_implausible_date_is_refused(gateway: TestClient, admin: Headers, received: str) -> None:
    body = {"subjects": ["a"], "received_at": received}
    assert gateway.post("/v1/erasures", json=body, headers=admin).status_code == 422


def test_the_same_key_gives_the_same_answer_and_one_erasure(
    gateway: TestClient, admin: Headers, models: list[str], services: Services
) -> None:
    headers = admin | {"Idempotency-Key": "order-66"}
    first = gateway.post("/v1/erasures", json={"subjects": ["ada"]}, headers=headers)
    again = gateway.post("/v1/erasures", json={"subjects": ["ada"]}, headers=headers)
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotent-Replayed"] == "true"
    other = gateway.post("/v1/erasures", json={"subjects": ["bob"]}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (422, "urn:lethe:problem:idempotency-mismatch")
    assert _count(services, Erasure) == 1


def test_a_key_belongs_to_its_tenant(gateway: TestClient, services: Services) -> None:
    keys = [key_for(services, name, Scope.ADMIN) | {"Idempotency-Key": "k"} for name in ("one", "two")]
    ids = {gateway.post("/v1/erasures", json={"subjects": ["a"]}, headers=key).json()["id"] for key in keys}
    assert len(ids) == 2


def test_a_tasks_identifiers_are_encrypted(
    gateway: TestClient, admin: Headers, models: list[str], services: Services
) -> None:
    _post(gateway, admin, subjects=["canary-person"])
    with services.database.reading() as session:
        stored = session.scalars(select(TaskSubject.identifier)).all()
    assert len(stored) == 2
    assert all(sealed is not None and b"canary" not in sealed for sealed in stored)


def test_withdrawing_forgets_the_identifiers_and_ends_at_sealing(
    gateway: TestClient, admin: Headers, models: list[str], services: Services
) -> None:
    shown = _post(gateway, admin)
    where = f"/v1/erasures/{shown['id']}"
    partly = gateway.delete(where, params={"model": "alpha"}, headers=admin).json()
    assert [task["state"] for task in partly["tasks"]] == ["withdrawn", "received"]
    assert gateway.delete(where, headers=admin).json()["state"] == "withdrawn"
    assert gateway.delete(where, headers=admin).status_code == 409
    with services.database.reading() as session:
        assert set(session.scalars(select(TaskSubject.identifier))) == {None}


def test_a_deadline_is_extended_once(gateway: TestClient, admin: Headers, models: list[str]) -> None:
    received = datetime.now(UTC).replace(day=1, microsecond=0) - timedelta(days=1)
    shown = _post(gateway, admin, received_at=received.isoformat())
    where = f"/v1/erasures/{shown['id']}/extend"
    extended = gateway.post(where, json={"reason": "complex"}, headers=admin).json()
    assert extended["extension_reason"] == "complex"
    assert datetime.fromisoformat(extended["due_at"]) > datetime.fromisoformat(shown["due_at"]) + timedelta(
        days=50
    )
    assert gateway.post(where, json={"reason": "again"}, headers=admin).status_code == 409


def test_filters(gateway: TestClient, admin: Headers, models: list[str]) -> None:
    late = _post(gateway, admin, received_at=(now() - timedelta(days=60)).isoformat(), models=["alpha"])
    kept = _post(gateway, admin, reference="case-1", models=["beta"])
    gone = _post(gateway, admin, models=["beta"])
    gateway.delete(f"/v1/erasures/{gone['id']}", headers=admin)

    def ids(**params: Any) -> set[str]:
        page = gateway.get("/v1/erasures", params=params, headers=admin).json()
        return {item["id"] for item in page["items"]}

    assert ids() == {late["id"], kept["id"], gone["id"]}
    assert ids(overdue=True) == {late["id"]}
    assert ids(model="beta") == {kept["id"], gone["id"]}
    assert ids(state="withdrawn") == {gone["id"]}
    assert ids(reference="case-1") == {kept["id"]}
    assert ids(model="beta", state="received") == {kept["id"]}


def test_pages_cover_everything_once(gateway: TestClient, admin: Headers) -> None:
    made = {_post(gateway, admin)["id"] for _ in range(7)}
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = gateway.get("/v1/erasures", params=params, headers=admin).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(made)
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(
    ("kind", "line", "header"),
    [("application/x-ndjson", '{{"subject_id": "p{}"}}\n', ""), ("text/csv", "p{}\n", "subject_id\n")],
)
def test_bulk_takes_more_than_fits_in_json(
    gateway: TestClient,
    admin: Headers,
    models: list[str],
    services: Services,
    kind: str,
    line: str,
    header: str,
) -> None:
    body = header + "".join(line.format(i) for i in range(12_000)) + line.format(0)
    headers = admin | {"Content-Type": kind, "Idempotency-Key": "bulk-1"}
    params = {"models": ["alpha"], "reference": "big"}
    first = gateway.post("/v1/erasures/bulk", content=body, params=params, headers=headers)
    assert first.status_code == 202, first.text
    assert first.json()["subjects"] == 12_000
    assert _count(services, TaskSubject) == 12_000
    again = gateway.post("/v1/erasures/bulk", content=body, params=params, headers=headers)
    assert again.content == first.content


def test_a_broken_bulk_leaves_nothing(
    gateway: TestClient, admin: Headers, models: list[str], services: Services
) -> None:
    def body() -> Iterator[bytes]:
        yield b"subject_id\np1\np2\n"
        yield b"\xff\n"

    headers = admin | {"Content-Type": "text/csv"}
    answer = gateway.post("/v1/erasures/bulk", content=body(), headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert "Line 4" in answer.json()["detail"]
    assert _count(services, Task) == 0


def _prepared(
    services: Services, tenant: UUID, key: str | None = None, subject: str = "a"
) -> recording.PreparedErasure:
    request = ErasureRequest(subjects=[subject])
    return prepare(services.vault, tenant, request, request.subjects, key)


@pytest.fixture
def tenant(gateway: TestClient, services: Services, models: list[str]) -> UUID:
    with services.database.reading() as session:
        return session.scalars(select(Model.tenant_id).limit(1)).one()


def test_a_group_is_one_transaction_and_duplicates_in_it_are_replays(
    services: Services, tenant: UUID
) -> None:
    group = [
        _prepared(services, tenant),
        _prepared(services, tenant, "k1"),
        _prepared(services, tenant, "k1"),
        _prepared(services, tenant, "k1", subject="other"),
        _prepared(services, tenant, "k2"),
    ]
    answers = recording.record_group(services, group)
    kinds = [(type(a).__name__, getattr(a, "replayed", None)) for a in answers]
    assert kinds == [
        ("Answer", False),
        ("Answer", False),
        ("Answer", True),
        ("IdempotencyMismatch", None),
        ("Answer", False),
    ]
    assert isinstance(answers[1], recording.Answer)
    assert isinstance(answers[2], recording.Answer)
    assert answers[1].body == answers[2].body
    assert _count(services, Erasure) == 3


def test_one_request_the_database_refuses_does_not_spoil_its_neighbours(
    services: Services, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [_prepared(services, tenant) for _ in range(5)]
    poisoned = group[2].id
    insert = recording.insert_erasures

    def refusing(session: Any, requests: Any, keys: Any) -> None:
        insert(session, requests, keys)
        if any(prepared.id == poisoned for prepared, _ in requests):
            raise DataError("INSERT", {}, Exception("refused"))

    monkeypatch.setattr(recording, "insert_erasures", refusing)

    async def run() -> list[Any]:
        async with GroupCommit(services) as door:
            return await asyncio.gather(*(door.submit(p) for p in group), return_exceptions=True)

    outcomes = asyncio.run(run())
    assert [isinstance(o, recording.Answer) for o in outcomes] == [True, True, False, True, True]
    assert isinstance(outcomes[2], ServiceError)
    assert _count(services, Erasure) == 4


def test_a_full_queue_says_so(services: Services, tenant: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MAX_WAITING", 3)

    async def run() -> list[Any]:
        async with GroupCommit(services) as door:
            waiting = [door.submit(_prepared(services, tenant)) for _ in range(20)]
            return await asyncio.gather(*waiting, return_exceptions=True)

    outcomes = asyncio.run(run())
    refused = [o for o in outcomes if isinstance(o, Unavailable)]
    accepted = [o for o in outcomes if isinstance(o, recording.Answer)]
    assert refused
    assert accepted
    assert len(refused) + len(accepted) == 20
    assert refused[0].headers["Retry-After"] == "1"
    assert _count(services, Erasure) == len(accepted)


def test_whoever_was_let_in_is_recorded_even_if_the_caller_leaves(services: Services, tenant: UUID) -> None:
    async def run() -> None:
        async with GroupCommit(services) as door:
            waiting = [asyncio.create_task(door.submit(_prepared(services, tenant))) for _ in range(4)]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())
    assert _count(services, Erasure) == 4
